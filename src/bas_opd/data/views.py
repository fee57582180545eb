"""What a model gets to see of an example: the full image or the privileged crop, and the question.

The lengths of prompts are checked from picture headers, before training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from PIL import Image

from bas_opd.data.images import Size, box_size, image_size, open_crop, open_image
from bas_opd.errors import DataError
from bas_opd.types import Example

PromptLength = Callable[[Size, str], int]
"""Returns the prompt tokens for a picture of (width, height) and a question."""
TOLD = (
    "{question}\n\nFor reference, the correct answer is: {answer}\n"
    "Look at the image yourself, and answer the question above in your own words."
)
"""What OPSD's teacher is told. The order is the released base code's, the wording is ours."""


def full_view(example: Example) -> tuple[Image.Image, str]:
    """Return the full image and the question: what the student sees."""
    return open_image(example.image), example.question


def crop_view(example: Example) -> tuple[Image.Image, str]:
    """Return the crop and the question: what the paper's teacher sees."""
    return open_crop(example), example.question


def answer_view(example: Example) -> tuple[Image.Image, str]:
    """Return the full image and the question with its answer: what OPSD's teacher sees."""
    return open_image(example.image), answered(example)


def answered(example: Example) -> str:
    """Return the question followed by its answer as a hint, and the request to solve it."""
    return TOLD.format(question=example.question, answer=example.answer.strip())


def crop_sizes(example: Example) -> Iterator[Size]:
    """Yield the size of the crop, if there is one."""
    if example.has_crop:
        yield crop_size(example)[0]


def crop_size(example: Example) -> tuple[Size, str]:
    """Return the size of the crop and the question: what a prompt's length depends on."""
    crop = example.crop
    if crop is not None and crop.image is not None:
        return image_size(crop.image), example.question
    if crop is not None and crop.box is not None:
        return box_size(crop.box), example.question
    raise DataError(f"Example {example.id!r} has no crop. Give it a box or a crop picture.")


def full_size(example: Example) -> tuple[Size, str]:
    """Return the size of the full image and the question."""
    return image_size(example.image), example.question


def check_prompts(
    examples: Iterable[Example],
    prompt_length: PromptLength,
    limit: int,
    text: Callable[[Example], str] = lambda example: example.question,
    sizes: Callable[[Example], Iterable[Size]] = lambda example: view_sizes(example),
) -> None:
    """Raise an error if the prompt of an example, with full image or crop, is too long.

    `text` is the longest that goes with a picture, and `sizes` are those of the pictures that are
    shown.
    """
    for example in examples:
        try:
            check_prompt(text(example), sizes(example), prompt_length, limit)
        except DataError as reason:
            raise DataError(
                f"Example {example.id!r} ({example.image.name}) cannot be trained on: {reason} "
                "`bas-opd data prepare --model MODEL --quarantine` finds all such rows at once."
            ) from reason


def check_prompt(
    question: str, sizes: Iterable[Size], prompt_length: PromptLength, limit: int
) -> None:
    """Raise an error if the prompt is too long with any of the views."""
    longest = max((prompt_length(size, question) for size in sizes), default=0)
    if longest > limit:
        raise DataError(
            f"Its prompt has {longest:,} tokens, more than the {limit:,} allowed, and prompts are "
            "never cut. Shrink its picture, shorten its question, or drop it."
        )


def full_sizes(example: Example) -> Iterator[Size]:
    """Yield the size of the full image."""
    yield image_size(example.image)


def view_sizes(example: Example) -> Iterator[Size]:
    """Yield the size of the full image and, if there is one, of the crop."""
    yield from full_sizes(example)
    yield from crop_sizes(example)
