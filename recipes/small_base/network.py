"""The small base model: its shape, and its forward pass at fixed sizes in few large kernels.

It is Qwen3-VL at 7 million parameters. Configuration, tokenizer and image settings are those of the
shipped model; the vocabulary has the 256 bytes, and one token for each word of the questions and
responses. Qwen3.5 would be slower: its linear attention runs at a fraction of the speed without
kernels of its own.

Pictures of one size form one batch. The questions about a picture follow it one after the other,
each masked from the rest, so that the picture is encoded once. A test compares the result with
transformers' own forward pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, Qwen3VLForConditionalGeneration

from bas_opd.data.finesearch.assets import COLOURS, catalogue
from bas_opd.model.base import small_base
from bas_opd.model.processing import Processor
from recipes.small_base.words import extend_tokenizer

PATCH, MERGE = 8, 2
FULL = 160
"""Side at which the model sees a whole picture of 320 pixels."""
CROPS = {"finesearch": 96, "finesearch2": 112}
"""Side at which it sees a crop around small things."""


def build(
    folder: Path,
    seed: int,
    version: str = "finesearch",
    *,
    vision_layers: int | None = None,
    text_layers: int | None = None,
) -> Path:
    """Write an untrained model of this shape, with random weights."""
    shipped = small_base()
    config = AutoConfig.from_pretrained(shipped)
    config.dtype = torch.float32
    folder.mkdir(parents=True, exist_ok=True)
    Processor.load(shipped).save(folder)
    generation = GenerationConfig.from_pretrained(shipped)
    if version != "finesearch":
        moved = extend_tokenizer(folder / "tokenizer.json", version)
        for part in (config, config.text_config, generation):
            _renumber(part, moved)
        config.text_config.vocab_size = (max(moved.values()) // 16 + 1) * 16
        _set_crop_side(folder / "processor_config.json", CROPS[version])
    config.vision_config.depth = vision_layers or config.vision_config.depth
    config.text_config.num_hidden_layers = text_layers or config.text_config.num_hidden_layers
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    model.generation_config = generation
    model.save_pretrained(folder)
    return folder


def _renumber(config: Any, moved: dict[int, int]) -> None:
    """Replace the numbers of special tokens in a configuration."""
    for name, value in list(vars(config).items()):
        if name.endswith("token_id") and value is not None:
            new = [moved[one] for one in value] if isinstance(value, list) else moved[value]
            setattr(config, name, new)


def _set_crop_side(file: Path, side: int) -> None:
    settings = json.loads(file.read_text("utf-8"))
    for part in ("image_processor", "video_processor"):
        # One less, so that rounding up in floating point does not give a larger side.
        settings[part]["size"]["shortest_edge"] = side**2 - 1
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


class Views:
    """One model reading pictures of one side, with `blocks` questions of `length` tokens each."""

    def __init__(self, model: Any, side: int, prefix: list[int], blocks: int, length: int) -> None:
        self.model, self.side = model, side
        device = model.device
        self.blocks, self.length = blocks, length
        self.prefix = torch.tensor(prefix, device=device)
        self.vision_cos, self.vision_sin, self.mix = _vision_positions(model, side)
        self.text_cos, self.text_sin = _text_positions(model, len(prefix), side, blocks, length)
        head = len(prefix) + (side // PATCH // MERGE) ** 2
        self.mask = _mask(head, blocks, length).to(device)

    def pictures(self, pixels: Tensor) -> Tensor:
        """Return image tokens `[row, token, hidden]` of pixels in 0..1."""
        visual = self.model.model.visual
        rows, grid = len(pixels), self.side // PATCH // MERGE
        patches = (2 * pixels - 1).view(rows, 3, grid, MERGE, PATCH, grid, MERGE, PATCH)
        patches = patches.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(rows, -1, 3 * PATCH**2)
        kernel = visual.patch_embed.proj
        # A still picture is given as two equal frames.
        hidden = F.linear(patches, kernel.weight.sum(2).flatten(1), kernel.bias)
        hidden = hidden + self.mix @ visual.pos_embed.weight
        for block in visual.blocks:
            hidden = _vision_block(block, hidden, self.vision_cos, self.vision_sin)
        return visual.merger(hidden.flatten(0, 1)).view(rows, grid * grid, -1)

    def texts(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return logits `[row, block, token, vocab]` of blocks of tokens behind their picture."""
        text = self.model.model.language_model
        rows = len(images)
        hidden = torch.cat(
            [
                text.embed_tokens(self.prefix).expand(rows, -1, -1),
                images.to(text.embed_tokens.weight.dtype),
                text.embed_tokens(tokens.flatten(1)),
            ],
            dim=1,
        )
        for layer in text.layers:
            hidden = _text_layer(layer, hidden, self.text_cos, self.text_sin, self.mask)
        hidden = text.norm(hidden[:, -self.blocks * self.length :])
        return self.model.lm_head(hidden).view(rows, self.blocks, self.length, -1)


class Labels(nn.Module):
    """Classifies what each image token shows: recognition is learnt much sooner that way.

    Used while the base is trained and then dropped.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        kinds = len(catalogue().categories) + 3  # and sign, note, nothing
        self.sizes = (kinds, len(COLOURS) + 1, 10, 10)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, sum(self.sizes))

    def loss(self, images: Tensor, things: Tensor, view: Tensor) -> Tensor:
        side = round(images.shape[1] ** 0.5)
        truth = token_truth(things, view, side)
        logits = self.head(self.norm(images)).float().split(self.sizes, dim=-1)
        total = torch.zeros((), device=images.device)
        for part, target in zip(logits, truth, strict=True):
            lost = F.cross_entropy(part.flatten(0, 1), target.flatten(), reduction="sum")
            total = total + lost / (target >= 0).sum().clamp_min(1)
        return total


def token_truth(things: Tensor, view: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return category, colour, tens and ones at each image token `[row, token]`."""
    kinds, rows = len(catalogue().categories), len(things)
    things, view = things.long(), view.float()
    step = (view[:, 2] - view[:, 0]) / side
    middle = (torch.arange(side, device=view.device) + 0.5) * step[:, None]
    x, y = view[:, :1] + middle, view[:, 1:2] + middle
    category = torch.full((rows, side, side), kinds + 2, device=view.device)
    colour = torch.full_like(category, len(COLOURS))
    tens, ones = torch.full_like(category, -100), torch.full_like(category, -100)
    for slot in range(things.shape[1]):
        shape, tint, _, value, left, top, size = things[:, slot, :, None, None].unbind(1)
        across = (x[:, None, :] >= left) & (x[:, None, :] < left + size)
        down = (y[:, :, None] >= top) & (y[:, :, None] < top + size)
        here = across & down & (shape >= 0)
        category = torch.where(here, torch.where(shape == 0, value, kinds - 1 + shape), category)
        colour = torch.where(here, tint, colour)
        tens = torch.where(here & (shape == 1), value // 10, tens)
        ones = torch.where(here & (shape >= 1), value % 10, ones)
    return category.flatten(1), colour.flatten(1), tens.flatten(1), ones.flatten(1)


@torch.compile(disable=not torch.cuda.is_available(), dynamic=False)
def _vision_block(block: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    attention = block.attn
    rows, tokens, _ = hidden.shape
    qkv = attention.qkv(block.norm1(hidden)).view(rows, tokens, 3, attention.num_heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(_turn(q, cos, sin), _turn(k, cos, sin), v)
    hidden = hidden + attention.proj(mixed.transpose(1, 2).reshape(rows, tokens, -1))
    return hidden + block.mlp(block.norm2(hidden))


@torch.compile(disable=not torch.cuda.is_available(), dynamic=False)
def _text_layer(layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
    attention, normed = layer.self_attn, layer.input_layernorm(hidden)
    rows, tokens, _ = hidden.shape
    shape = (rows, tokens, -1, attention.head_dim)
    q = attention.q_norm(attention.q_proj(normed).view(shape)).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(normed).view(shape)).transpose(1, 2)
    v = attention.v_proj(normed).view(shape).transpose(1, 2)
    q, k = _turn(q, cos, sin).to(v.dtype), _turn(k, cos, sin).to(v.dtype)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    hidden = hidden + attention.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1))
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def _mask(head: int, blocks: int, length: int) -> Tensor:
    """Let a token attend to what precedes it in the head and in its own block."""
    total = head + blocks * length
    place = torch.arange(total)
    block = (place - head).div(length, rounding_mode="floor").clamp_min(-1)
    before = place[:, None] >= place[None, :]
    return before & ((block[None, :] == -1) | (block[:, None] == block[None, :]))


def _vision_positions(model: Any, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rotary tables of transformers' own pass, and the weights of position vectors."""
    visual, device = model.model.visual, model.device
    grid = side // PATCH
    caught: dict[str, Any] = {}

    def catch(_module: nn.Module, _args: Any, kwargs: Any) -> None:
        caught.update(kwargs)

    hook = visual.blocks[0].register_forward_pre_hook(catch, with_kwargs=True)
    pixels = torch.zeros(grid * grid, 3 * 2 * PATCH**2, device=device)
    with torch.no_grad():
        visual(pixels, grid_thw=torch.tensor([[1, grid, grid]], device=device))
    hook.remove()
    cos, sin = caught["position_embeddings"]

    known = round(visual.pos_embed.num_embeddings**0.5)
    each = torch.eye(known**2).view(1, known**2, known, known)
    mix = F.interpolate(each, size=(grid, grid), mode="bilinear", align_corners=True)[0]
    mix = mix.view(-1, grid // 2, 2, grid // 2, 2).permute(1, 3, 2, 4, 0).reshape(grid * grid, -1)
    return cos.float(), sin.float(), mix.to(device)


def _text_positions(
    model: Any, start: int, side: int, blocks: int, length: int
) -> tuple[Tensor, Tensor]:
    grid = side // PATCH // MERGE
    rows, columns = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    image = torch.stack([torch.zeros(grid, grid).long(), rows, columns]).flatten(1) + start
    behind = (start + grid + torch.arange(length)).repeat(blocks).expand(3, -1)
    places = torch.cat([torch.arange(start).expand(3, -1), image, behind], dim=1).to(model.device)
    text = model.model.language_model
    probe = torch.zeros(1, 1, 1, device=model.device)
    cos, sin = text.rotary_emb(probe, places[:, None])
    return cos[0].float(), sin[0].float()
