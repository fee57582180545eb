"""Print how well single things can be read at the resolution of the student's view.

    python -m recipes.small_base.probe --version finesearch2

A picture of 320 pixels is shrunk to 160, as the model's processor does. A small convolutional
network then reads one thing whose place is given: the category of an object, the colour of its
plate, a number or a handwritten digit. It is trained on the train split and judged on drawings,
typefaces and handwriting that it has never seen. What it reads is in the student's view; what it
misses may be missing there, or in the training drawings.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from bas_opd.data.finesearch import SPLITS, VERSIONS, Sample, Split, render, sample
from bas_opd.data.finesearch.assets import COLOURS, SIDE, catalogue
from bas_opd.data.finesearch.scenes import Placed
from recipes.small_base.network import FULL

WINDOW = 24
"""Side to which every window is scaled: a small thing has 16 to 22 pixels in the student's view."""
MARGIN = 4
"""Pixels of the picture around a thing; no thing is nearer to the edge."""
JUDGED = ("attribute", "pair", "number", "digit", "neighbour", "existence", "count")
TRAINED = ("number", "digit", "neighbour")
"""Kinds of the training scenes: together they show every sort of thing often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One thing to read: how many classes it has, and how the training pictures may be changed."""

    shape: tuple[str, ...]
    """Things that carry it."""
    parts: int
    classes: int
    epochs: int
    most: int
    """Most training windows."""
    turn: float
    """Largest rotation in radians."""
    is_free: bool = False
    """Whether mirrored and recoloured windows read the same, as those of objects do."""


READINGS = {
    "colour": Reading(shape=("plate",), parts=1, classes=8, epochs=4, most=6_000, turn=0.2),
    "number": Reading(shape=("sign",), parts=2, classes=10, epochs=20, most=9_000, turn=0.1),
    "digit": Reading(shape=("note",), parts=1, classes=10, epochs=20, most=9_000, turn=0.2),
    "category": Reading(
        shape=("plate",),
        parts=1,
        classes=40,
        epochs=14,
        most=27_000,
        turn=0.45,
        is_free=True,
    ),
}
"""A number has two parts, tens and ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", choices=tuple(VERSIONS), default="finesearch2")
    parser.add_argument(
        "--splits", choices=SPLITS, nargs="+", default=["val"], help="splits to judge on"
    )
    parser.add_argument("--scenes", type=int, default=6_000, help="training scenes")
    parser.add_argument("--judged", type=int, default=500, help="judged scenes of each kind")
    parser.add_argument("--side", type=int, default=FULL, help="side of the shrunk picture")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    readers = train(options.version, options.scenes, side=options.side, seed=options.seed)
    for split in options.splits:
        # Another seed: known drawings, too, are judged in pictures that were not trained on.
        questions = drawn(options.version, split, options.judged, seed=options.seed + 1)
        for what, shares in judge(readers, questions, options.side).items():
            line = {"version": options.version, "split": split, "side": options.side, "of": what}
            line |= {name: round(share, 3) for name, share in shares.items()}
            print(json.dumps(line), flush=True)
    print(f"{time.process_time():.0f} s of CPU time")


def train(version: str, scenes: int, *, side: int = FULL, seed: int = 0) -> dict[str, Reader]:
    """Return a network for each reading, trained on scenes of the train split."""
    torch.manual_seed(seed)
    windows = Windows(side)
    for index in range(scenes):
        kind = TRAINED[index % len(TRAINED)]
        for one in sample("train", "small", seed, index, kind, version=version):
            windows.add(one, one.scene.placed)
    readers = {}
    for name, reading in READINGS.items():
        pictures, labels = windows.of(name)
        readers[name] = learn(pictures[: reading.most], labels[: reading.most], reading)
    return readers


def drawn(version: str, split: Split, many: int, *, seed: int) -> list[Sample]:
    """Return some questions of every kind."""
    return [
        one
        for kind in JUDGED
        for index in range(many)
        for one in sample(split, "small", seed, index, kind, version=version)
    ]


class Windows:
    """Things cut out of shrunk pictures."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.placed: list[Placed] = []
        self.pictures: list[np.ndarray] = []

    def add(self, one: Sample, placed: Iterable[Placed]) -> None:
        view = shrunk(render(one.scene), self.side)
        for each in placed:
            self.placed.append(each)
            self.pictures.append(np.asarray(window(view, each)))

    def of(self, name: str) -> tuple[Tensor, Tensor]:
        """Return windows `[row, 3, WINDOW, WINDOW]` in 0..1 with a reading, and its classes."""
        shapes = READINGS[name].shape
        rows = [row for row, each in enumerate(self.placed) if each.thing.shape in shapes]
        labels = torch.tensor([truth(name, self.placed[row]) for row in rows])
        return tensor([self.pictures[row] for row in rows]), labels


def shrunk(picture: Image.Image, side: int) -> Image.Image:
    return picture.resize((side, side), Image.Resampling.BICUBIC)


def window(view: Image.Image, placed: Placed) -> Image.Image:
    """Return a thing with a small margin. Scaling it adds nothing to what the view shows."""
    scale = view.width / SIDE
    left, top = (scale * (edge - MARGIN) for edge in placed.box[:2])
    right, bottom = (scale * (edge + MARGIN) for edge in placed.box[2:])
    box = (left, top, right, bottom)
    return view.resize((WINDOW, WINDOW), Image.Resampling.BICUBIC, box=box)


def tensor(pictures: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def truth(name: str, placed: Placed) -> list[int]:
    """Return the class of each part of a reading."""
    thing = placed.thing
    if name == "colour":
        return [list(COLOURS).index(thing.colour)]
    if name == "category":
        return [catalogue().categories.index(thing.name)]
    return [int(figure) for figure in thing.name]


class Reader(nn.Module):
    """Four convolutions; scores `[row, part, class]`."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.reading = reading
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128), (128, 192)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3))
        self.head = nn.Linear(192 * 2 * 2, reading.parts * reading.classes)
        # A third faster on a CPU.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, pictures: Tensor) -> Tensor:
        scores = self.head(self.trunk(2 * pictures - 1))
        return scores.view(len(pictures), self.reading.parts, self.reading.classes)


def learn(pictures: Tensor, labels: Tensor, reading: Reading, *, batch: int = 128) -> Reader:
    """Train a reader on windows, each changed a little every time it is shown."""
    reader = Reader(reading)
    steps = reading.epochs * -(-len(pictures) // batch)
    optimizer = torch.optim.AdamW(reader.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(reading.epochs):
        for rows in torch.randperm(len(pictures)).split(batch):
            scores = reader(changed(pictures[rows], reading))
            loss = F.cross_entropy(
                scores.flatten(0, 1), labels[rows].flatten(), label_smoothing=0.1
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return reader.eval()


def changed(pictures: Tensor, reading: Reading) -> Tensor:
    """Rotate, scale and shift windows at random; mirror and recolour those of objects."""
    rows = len(pictures)
    angle, zoom = _within(reading.turn, rows), 1 + _within(0.1, rows)
    mirror = torch.where((torch.rand(rows) < 0.5) & torch.tensor(reading.is_free), -1.0, 1.0)
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    across = torch.stack([mirror * cos, -mirror * sin, _within(0.08, rows)], dim=1)
    down = torch.stack([sin, cos, _within(0.08, rows)], dim=1)
    theta = torch.stack([across, down], dim=1)
    grid = F.affine_grid(theta, list(pictures.shape), align_corners=False)
    moved = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    if reading.is_free:
        moved = torch.einsum("rij,rjyx->riyx", _mixing(rows), moved).clamp(0, 1)
    return moved.contiguous(memory_format=torch.channels_last)


def _mixing(rows: int) -> Tensor:
    """Return how each new colour channel is mixed from the old ones; some rows become grey.

    Few drawings of a category are trained on, so that their colours must not be relied on.
    """
    mixing = torch.eye(3) + 0.25 * torch.randn(rows, 3, 3)
    mixing = mixing / mixing.sum(2, keepdim=True).clamp_min(0.3)
    mixing[torch.rand(rows) < 0.15] = 1 / 3
    return mixing * (1 + _within(0.3, rows, 3, 1))


def _within(most: float, *shape: int) -> Tensor:
    return (2 * torch.rand(*shape) - 1) * most


@torch.no_grad()
def judge(
    readers: dict[str, Reader], questions: Sequence[Sample], side: int
) -> dict[str, dict[str, float]]:
    """Read the things that each question is about, and answer it from what was read."""
    windows = Windows(side)
    spans: list[slice] = []
    for one in questions:
        about = asked_about(one)
        spans.append(slice(len(windows.placed), len(windows.placed) + len(about)))
        windows.add(one, about)
    pictures = tensor(windows.pictures)
    singles: dict[str, list[bool]] = {name: [] for name in READINGS}
    categories: dict[str, list[bool]] = {}
    kinds: dict[str, list[bool]] = {kind: [] for kind in JUDGED}
    scores = {
        name: torch.cat([reader(some) for some in pictures.split(512)])
        for name, reader in readers.items()
    }
    for one, span in zip(questions, spans, strict=True):
        name = READ_FOR[one.kind]
        read = scores[name][span].argmax(-1).tolist()
        for got, each in zip(read, windows.placed[span], strict=True):
            is_right = got == truth(name, each)
            singles[name].append(is_right)
            if name == "category":
                categories.setdefault(each.thing.name, []).append(is_right)
        kinds[one.kind].append(answer(one, read) == one.question.answer)
    return {
        "single things": {name: fmean(right) for name, right in singles.items()},
        "kinds": {kind: fmean(right) for kind, right in kinds.items()},
        "categories mostly missed": {
            name: fmean(right) for name, right in categories.items() if fmean(right) < 0.5
        },
    }


READ_FOR = {
    "attribute": "colour",
    "pair": "colour",
    "number": "number",
    "digit": "digit",
    "neighbour": "category",
    "existence": "category",
    "count": "category",
}
"""What must be read to answer each kind."""


def asked_about(one: Sample) -> tuple[Placed, ...]:
    """Return the things that must be read: four to count, else one."""
    first, *rest = one.scene.placed
    if one.kind == "count":
        return (first, *rest[:3])
    if one.kind == "neighbour":
        return (first if first.thing.name == one.question.answer else rest[0],)
    return (rest[0],) if one.kind == "existence" else (first,)


def answer(one: Sample, read: Sequence[Sequence[int]]) -> str:
    """Answer a question from the classes that were read."""
    name = READ_FOR[one.kind]
    if name == "colour":
        return list(COLOURS)[read[0][0]]
    if name in ("number", "digit"):
        return "".join(map(str, read[0]))
    found = [catalogue().categories[classes[0]] for classes in read]
    if one.kind == "neighbour":
        return found[0]
    named = re.findall(r"\w+", one.question.text.split(" next to ")[0])[-1]
    if one.kind == "existence":
        return "yes" if found[0] == named else "no"
    return str(found.count(named))


if __name__ == "__main__":
    main()
