"""Convert image and question to model inputs: token ids with image tokens, and pixels.

Tokenizer, chat template and image settings are the checkpoint's own. The image placeholder is
expanded here, so torchvision is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    ProcessorMixin,
)
from transformers.image_utils import SizeDict
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)
from transformers.utils.hub import cached_file

from bas_opd import disk
from bas_opd.errors import ConfigError, DataError, ModelError
from bas_opd.model.family import checkpoint_config
from bas_opd.model.folder import explained, local_folder
from bas_opd.types import Prompt

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""Files of a checkpoint that configure text and images."""

Tokenizer: TypeAlias = Any  # A transformers tokenizer; its own type hints are wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """An image as the model sees it."""

    values: Tensor  # [patch, pixel]
    grid: Tensor  # [image, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """Builds prompts for one checkpoint and decodes its responses."""

    source: str
    """Folder or hub id of the checkpoint."""
    tokenizer: Tokenizer
    images: Qwen2VLImageProcessorPil
    template: str
    thinking: bool
    image_id: int
    suppressed_ids: tuple[int, ...]
    """Vision ids: in a response they have no pixels, and scoring them would fail."""
    eos_ids: tuple[int, ...]
    pad_id: int

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        thinking: bool = False,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> Processor:
        """Load tokenizer, chat template and image settings of a folder or hub id.

        `thinking` is passed to the chat template, which may ignore it; the pixel limits replace
        the checkpoint's own.
        """
        path = local_folder(path, has_tensors=False)
        config = checkpoint_config(path)
        with explained(path, "tokenizer (tokenizer.json, tokenizer_config.json)"):
            tokenizer = _load_tokenizer(path, config)
        with explained(path, "image settings (preprocessor_config.json, processor_config.json)"):
            images = _load_images(path, min_pixels=min_pixels, max_pixels=max_pixels)
        with explained(path, "chat template"):
            template = _load_template(path, tokenizer)
        processor = cls(
            source=str(path),
            tokenizer=tokenizer,
            images=images,
            template=template,
            thinking=thinking,
            image_id=config.image_token_id,
            suppressed_ids=(
                config.image_token_id,
                config.video_token_id,
                config.vision_start_token_id,
                config.vision_end_token_id,
            ),
            eos_ids=_load_eos_ids(path, tokenizer),
            pad_id=tokenizer.pad_token_id,
        )
        processor._check_template(path)
        with explained(path, "image settings (preprocessor_config.json, processor_config.json)"):
            pixels = processor.encode(Image.new("RGB", (64, 64)), "?").pixel_values
            if not torch.isfinite(pixels).all():
                raise ValueError("its mean and std give pixels that are not finite")
        return processor

    def encode(self, image: Image.Image, question: str) -> Prompt:
        """Return the prompt of one image and one question, ready for a response."""
        return self.prompt(self.look(image), question)

    def look(self, image: Image.Image) -> Pixels:
        """Return what the model sees of an image."""
        self._check_shape(image.size)
        features = self.images(images=image, return_tensors="pt")
        return Pixels(values=features["pixel_values"], grid=features["image_grid_thw"])

    def prompt(self, pixels: Pixels, question: str) -> Prompt:
        """Return the prompt of an image that was looked at, and a question."""
        ids = self._input_ids(question, pixels.grid)
        return Prompt(input_ids=ids, pixel_values=pixels.values, grid=pixels.grid)

    def resized(self, image: Image.Image) -> Image.Image:
        """Return an image in the size in which the model sees it.

        Another library has then nothing to resize, which each does in its own way.
        """
        self._check_shape(image.size)
        images: Any = self.images
        if not images.do_resize:
            return image
        height, width = smart_resize(
            image.height,
            image.width,
            factor=images.patch_size * images.merge_size,
            min_pixels=images.size["shortest_edge"],
            max_pixels=images.size["longest_edge"],
        )
        return image.convert("RGB").resize((width, height), images.resample)

    def encode_again(self, prompt: Prompt, question: str) -> Prompt:
        """Return the prompt of another question about the same image."""
        return replace(prompt, input_ids=self._input_ids(question, prompt.grid))

    def _input_ids(self, question: str, grid: Tensor) -> Tensor:
        image_tokens = int(grid.prod()) // self.images.merge_size**2
        return torch.tensor(self._expand(self._tokens(question), image_tokens))

    def prompt_ids(self, question: str) -> list[int]:
        """Return the prompt of a question as token ids, with one image token."""
        return self._tokens(question)

    def prompt_length(self, size: tuple[int, int], question: str) -> int:
        """Return the prompt length in tokens for an image of (width, height); needs no pixels."""
        self._check_shape(size)
        width, height = size
        patches = self.images.get_number_of_image_patches(height, width)
        return len(self._tokens(question)) - 1 + patches // self.images.merge_size**2

    def decode(self, tokens: Sequence[int] | Tensor) -> str:
        """Return the text of a response without its special tokens."""
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Copy the checkpoint's text and image files next to the trained weights."""
        for name in FILES:
            if found := cached_file(self.source, name, _raise_exceptions_for_missing_entries=False):
                disk.copy_file(Path(found), folder / name)

    def mm_token_type_ids(self, input_ids: Tensor) -> Tensor:
        """Return 1 at image tokens and 0 elsewhere; the model needs it for its 3-D positions."""
        return (input_ids == self.image_id).long()

    def _tokens(self, question: str) -> list[int]:
        """Tokenise the prompt with one image token; control tokens in the question stay text.

        A question may quote `<|im_end|>`. Each such string is split after its first character, and
        the pieces are tokenised separately; a question without one is tokenised as usual.
        """
        cut = "\ue000"
        while cut in question:
            cut += "\ue000"
        controls = sorted(self.tokenizer.get_added_vocab(), key=len, reverse=True)
        harmless = re.sub(
            "|".join(map(re.escape, controls)),
            lambda control: control[0][0] + cut + control[0][1:],
            question,
        )
        pieces = self._render(harmless).split(cut)
        batch = self.tokenizer(pieces, add_special_tokens=False)["input_ids"]
        return [token for piece in batch for token in piece]

    def _render(self, question: str) -> str:
        content = [{"type": "image"}, {"type": "text", "text": question}]
        return str(
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=self.thinking,
            )
        )

    def _expand(self, tokens: list[int], image_tokens: int) -> list[int]:
        place = tokens.index(self.image_id)
        return tokens[:place] + [self.image_id] * image_tokens + tokens[place + 1 :]

    def _check_shape(self, size: tuple[int, int]) -> None:
        if max(size) > 200 * min(size):
            raise DataError(
                f"An image of {size[0]} x {size[1]} pixels is more than 200 times as long as wide, "
                "which the model cannot read. Remove the example, or crop its image."
            )

    def _check_template(self, path: str | Path) -> None:
        """Raise an error while loading, not at the first example, if an image cannot be placed."""
        try:
            places = self._tokens("?").count(self.image_id)
        except Exception as error:  # A template may divide by zero.
            raise ModelError(
                f"The chat template of {path} cannot render a question about an image: {error}. "
                "Use the template of an instruction-tuned checkpoint."
            ) from error
        if places != 1:
            raise ModelError(
                f"The chat template of {path} writes {places} image tokens for one image, but "
                "exactly one is needed. Use the template of an instruction-tuned checkpoint."
            )


def check_same_tokens(teacher: Processor, student: Processor) -> None:
    """Raise unless each token id means the same to a teacher and its student."""
    sizes = [vocabulary_size(each) for each in (teacher, student)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"The teacher at {teacher.source} predicts {sizes[0]:,} token ids and the model that "
            f"it teaches {sizes[1]:,}, so their distributions cannot be compared. Use a teacher "
            "with the same vocabulary (vocab_size in config.json)."
        )
    theirs, ours = (dict[str, int](p.tokenizer.get_vocab()) for p in (teacher, student))
    if other := sorted(t for t in theirs.keys() | ours.keys() if theirs.get(t) != ours.get(t)):
        raise ModelError(
            f"The teacher at {teacher.source} has another tokenizer than the model that it "
            f"teaches: {len(other):,} tokens differ, such as {other[0]!r} (id "
            f"{theirs.get(other[0])}, not {ours.get(other[0])}). Use a teacher with the same "
            "tokenizer."
        )


def vocabulary_size(processor: Processor) -> int:
    """Return how many token ids the model of a processor predicts."""
    return int(checkpoint_config(processor.source).get_text_config().vocab_size)


def _load_tokenizer(path: str | Path, config: PreTrainedConfig) -> Tokenizer:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{_no_tokenizer(path)} The cause: {error}") from error
    # Without its files the class loads with an almost empty vocabulary instead of an error.
    if len(tokenizer) <= config.image_token_id:
        raise ModelError(_no_tokenizer(path))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _no_tokenizer(path: str | Path) -> str:
    return (
        f"The model at {path} has no tokenizer with its image token. Copy tokenizer.json and "
        "tokenizer_config.json of the checkpoint next to its weights."
    )


def _load_images(
    path: str | Path, *, min_pixels: int | None, max_pixels: int | None
) -> Qwen2VLImageProcessorPil:
    try:
        images: Any = Qwen2VLImageProcessorPil.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"The model at {path} has no image settings. Copy preprocessor_config.json or "
            "processor_config.json of the checkpoint next to its weights."
        ) from error
    least = images.size["shortest_edge"] if min_pixels is None else min_pixels
    most = images.size["longest_edge"] if max_pixels is None else max_pixels
    if not 0 < least <= most:
        raise ConfigError(
            f"Images cannot have at least {least} and at most {most} pixels. Set model.min_pixels "
            "and model.max_pixels so that the first is positive and not above the second."
        )
    images.size = SizeDict(shortest_edge=least, longest_edge=most)
    return images


def _load_template(path: str | Path, tokenizer: Tokenizer) -> str:
    """Prefer the processor's template to the tokenizer's, as `AutoProcessor` does."""
    settings, _ = ProcessorMixin.get_processor_dict(path)
    template = settings.get("chat_template") or tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise ModelError(
            f"The model at {path} has no chat template. Copy chat_template.jinja of an "
            "instruction-tuned checkpoint next to its weights."
        )
    return template


def _load_eos_ids(path: str | Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    try:
        ids: Any = GenerationConfig.from_pretrained(path).eos_token_id
    except (OSError, AttributeError, TypeError, ValueError) as error:
        # The file is optional: without it, the tokenizer has the only end token.
        if cached_file(path, "generation_config.json", _raise_exceptions_for_missing_entries=False):
            raise ModelError(
                f"The generation_config.json of {path} is damaged, so it is not known where its "
                "responses end. Download or restore the file."
            ) from error
        ids = None
    if ids is None:
        ids = tokenizer.eos_token_id
    found = ids if isinstance(ids, list) else [ids]
    if not found or not all(type(each) is int and each >= 0 for each in found):
        raise ModelError(
            f"The generation_config.json of {path} has {ids!r} for eos_token_id, where the id of "
            "a token or a list of ids is expected. Restore the file."
        )
    return tuple(found)
