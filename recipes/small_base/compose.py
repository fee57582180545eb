"""Scenes drawn on the GPU, a batch at a time: thousands a second where one CPU core draws thirty.

The same tiles as the exact drawing, at half its resolution and sampled bilinearly. Objects are
rotated, mirrored and recoloured, so that a small model does not memorise six drawings.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bas_opd.data.finesearch.assets import CELL, SIDE, catalogue, photograph
from bas_opd.data.finesearch.render import backing, overlay
from bas_opd.data.finesearch.scenes import Shape, Thing
from recipes.small_base.feed import COLOUR_NAMES, SHAPES

TILE = CELL // 2
"""Side of a tile: no view shows a thing much larger."""


class Painter:
    """The drawings and photographs on one device, and how scenes are composed of them."""

    def __init__(self, device: torch.device, *, augment: bool = True) -> None:
        self.device, self.augment = device, augment
        listed = catalogue()
        plates = [_blank("plate", p.category, p.index) for p in listed.pictures]
        faces = range(len(listed.faces))
        signs = [_blank("sign", number, face) for face in faces for number in range(10, 100)]
        notes = [_blank("note", value, index) for index, (_, value) in enumerate(listed.digits)]
        self.first = (0, len(plates), len(plates) + len(signs))
        """Index of the first plate, sign and note."""
        self.overlays = _tile_stack(
            [np.asarray(overlay(thing)) for thing in (*plates, *signs, *notes)], device
        )
        self.backings = _tile_stack(
            [np.asarray(backing(shape, colour)) for shape in SHAPES for colour in COLOUR_NAMES],
            device,
        )
        self.photos = _stack([np.asarray(photograph(b)) for b in listed.backgrounds], device)

    @torch.no_grad()
    def paint(self, things: Tensor, backdrop: Tensor, view: Tensor, side: int) -> Tensor:
        """Return pictures `[row, 3, side, side]` in 0..1 of the given views of the scenes."""
        things, backdrop, view = things.int().clone(), backdrop.int(), view.float()
        # An empty slot has no size; any will do, since its tile is transparent.
        things[..., 6] = things[..., 6].where(things[..., 0] >= 0, SIDE)
        canvas = self._photo(backdrop, view, side)
        tiles = self._tiles(things, view, side)  # [row, slot, 4, cell, cell]
        for slot in range(things.shape[1]):
            thing = things[:, slot]
            scale = (view[:, 2] - view[:, 0]) / thing[:, 6]
            shift = (view[:, :2] + view[:, 2:] - 2 * thing[:, 4:6]) / thing[:, 6:] - 1
            drawn = _sample(tiles[:, slot], scale, scale, shift, side)
            canvas = canvas * (1 - drawn[:, 3:]) + drawn[:, :3]
        return canvas.clamp(0, 1)

    def _photo(self, backdrop: Tensor, view: Tensor, side: int) -> Tensor:
        window = backdrop[:, 1:5].float()
        zoom = (window[:, 2] - window[:, 0]) / SIDE
        mirror = 1.0 - 2.0 * backdrop[:, 5].float()
        scale = (view[:, 2] - view[:, 0]) / SIDE * zoom
        centre = (view[:, :2] + view[:, 2:]) / SIDE - 1  # of the view in the picture, -1..1
        middle = (window[:, :2] + window[:, 2:]) / SIDE - 1  # of the window in the photograph
        shift = centre * zoom[:, None] * torch.stack([mirror, torch.ones_like(mirror)], 1) + middle
        photo = self.photos[backdrop[:, 0]].float() / 255
        drawn = _sample(photo, mirror * scale, scale, shift, side)
        return drawn * (backdrop[:, 6:9, None, None].float() / 256)

    def _tiles(self, things: Tensor, view: Tensor, side: int) -> Tensor:
        """Colours multiplied by their opacity; an empty slot is transparent."""
        rows, slots, _ = things.shape
        flat = things.reshape(rows * slots, -1)
        shape, colour, picture, value = (flat[:, i].clamp_min(0) for i in range(4))
        sign = self.first[1] + picture * 90 + (value - 10)
        index = torch.where(
            shape == 0, picture, torch.where(shape == 1, sign, picture + self.first[2])
        )
        top = self.overlays[index]
        if self.augment:
            top = _jitter(top, shape == 0)
        under = self.backings[shape * len(COLOUR_NAMES) + colour]
        tile = top + under * (1 - top[:, 3:])
        tile = tile * (flat[:, 0] >= 0)[:, None, None, None]
        # How finely a thing is resolved: by its own pixels, and by those of the view.
        width = (view[:, 2] - view[:, 0]).repeat_interleave(slots)
        pixels = flat[:, 6] * (side / width).clamp_max(1.0)
        level = (torch.log2(TILE / pixels) + torch.rand_like(pixels) - 0.5).round()
        for step in (1, 2):
            blurred = F.avg_pool2d(tile, 2**step).repeat_interleave(2**step, 2)
            blurred = blurred.repeat_interleave(2**step, 3)
            coarse = (level >= step) if step == 2 else (level == step)
            tile = torch.where(coarse[:, None, None, None], blurred, tile)
        return tile.view(rows, slots, 4, TILE, TILE)


def _blank(shape: Shape, name: object, picture: int) -> Thing:
    return Thing(shape=shape, name=str(name), picture=picture, colour="")


def _sample(source: Tensor, scale_x: Tensor, scale_y: Tensor, shift: Tensor, side: int) -> Tensor:
    """Sample pictures at x = scale * view + shift, both in -1..1; outside they are empty."""
    zero = torch.zeros_like(scale_x)
    return _transform(
        source, (scale_x, zero, shift[:, 0]), (zero, scale_y, shift[:, 1]), (side, side)
    )


def _jitter(top: Tensor, is_object: Tensor) -> Tensor:
    """Rotate, mirror and recolour objects; what is written stays as it is."""
    rows = len(top)
    angle = (torch.rand(rows, device=top.device) - 0.5) * 0.5 * is_object
    mirror = torch.where((torch.rand(rows, device=top.device) < 0.5) & is_object, -1.0, 1.0)
    zoom = 1 + (torch.rand(rows, device=top.device) - 0.5) * 0.3 * is_object
    cos, sin, zero = angle.cos() * zoom, angle.sin() * zoom, torch.zeros_like(angle)
    turned = _transform(
        top, (mirror * cos, -mirror * sin, zero), (sin, cos, zero), (top.shape[2], top.shape[3])
    )
    gain = 1 + (torch.rand(rows, 3, 1, 1, device=top.device) - 0.5) * 0.5
    gain = torch.where(is_object[:, None, None, None], gain, 1.0)
    colour = torch.minimum(turned[:, :3] * gain, turned[:, 3:])
    return torch.cat([colour, turned[:, 3:]], dim=1)


def _transform(
    source: Tensor,
    across: tuple[Tensor, Tensor, Tensor],
    down: tuple[Tensor, Tensor, Tensor],
    size: tuple[int, int],
) -> Tensor:
    """Sample pictures bilinearly at an affine map of the view, given by its two rows."""
    theta = torch.stack([torch.stack(across, dim=1), torch.stack(down, dim=1)], dim=1)
    grid = F.affine_grid(theta, [*source.shape[:2], *size], align_corners=False)
    return F.grid_sample(source, grid, align_corners=False)


def _tile_stack(pictures: list[np.ndarray], device: torch.device) -> Tensor:
    """Tiles `[tile, 4, TILE, TILE]` in 0..1, colours multiplied by their opacity."""
    share = _stack(pictures, device).float() / 255
    opaque = torch.cat([share[:, :3] * share[:, 3:], share[:, 3:]], dim=1)
    return F.avg_pool2d(opaque, CELL // TILE)


def _stack(pictures: list[np.ndarray], device: torch.device) -> Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().to(device)
