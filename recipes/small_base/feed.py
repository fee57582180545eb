"""Endless training scenes as arrays, made by worker processes while the GPU trains.

The scenes are FineSearch's own, of its training split. Whole pictures show things that are large
enough to be found; crops show things of every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from bas_opd.data.finesearch import VERSIONS, Sample
from bas_opd.data.finesearch import questions as ask
from bas_opd.data.finesearch import questions2 as ask2
from bas_opd.data.finesearch.assets import COLOURS, SIDE, catalogue
from bas_opd.data.finesearch.samples import draw_samples
from bas_opd.data.finesearch.scenes import Box, Draws, Placed, Scene, Shape, crop_box
from bas_opd.model.processing import Processor

SLOTS = 9
"""Most things in a scene."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a base is trained on a version of FineSearch."""

    questions: int
    """Questions about each picture: it is encoded once for all of them."""
    length: int
    """Most tokens of a question with its response and the template around them."""
    styles: tuple[int, ...]
    """Styles of a response, each as often as it is drawn."""
    smallest: int
    """Side in pixels of the smallest thing in a whole picture."""


COURSES = {
    "finesearch": Course(questions=4, length=44, styles=(0, 0, 1, 1, 2), smallest=40),
    "finesearch2": Course(questions=3, length=108, styles=(0, 0, 1, 1, 2, 3, 3), smallest=56),
}

SHAPES: tuple[Shape, ...] = get_args(Shape)
COLOUR_NAMES = tuple(COLOURS)


class Scenes(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of scenes with questions, for `whole` whole pictures and `crops` crops.

    `smallest` overrides the side of the smallest thing in a whole picture.
    """

    def __init__(
        self,
        processor: Processor,
        *,
        whole: int,
        crops: int,
        seed: int,
        version: str = "finesearch",
        smallest: int | None = None,
    ) -> None:
        self.tokenizer, self.seed, self.version = processor.tokenizer, seed, version
        self.course, self.of = COURSES[version], VERSIONS[version]
        self.whole, self.crops = whole, crops
        self.smallest = smallest or self.course.smallest
        self._tokens: dict[str, list[int]] = {}
        self.pad, self.end = processor.pad_id, processor.tokenizer.eos_token_id
        prompt = processor.encode(Image.new("RGB", (SIDE, SIDE)), "?").input_ids.tolist()
        (question,) = self._encode("?")
        image = prompt.index(processor.image_id)
        behind = len(prompt) - prompt[::-1].index(processor.image_id)
        asked = prompt.index(question)
        self.prefix = prompt[:image]
        """Tokens of a prompt before its picture; then those up to the question, and after it."""
        self.before, self.between = prompt[behind:asked], prompt[asked + 1 :]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        batch = number
        while True:
            yield self.batch(batch)
            batch += workers

    def batch(self, number: int) -> dict[str, torch.Tensor]:
        draws = Draws("pretraining", self.seed, number)
        views = {
            "whole": [self._example(draws, is_whole=True) for _ in range(self.whole)],
            "crops": [self._example(draws, is_whole=False) for _ in range(self.crops)],
        }
        return {
            f"{view}.{name}": torch.from_numpy(np.stack([example[name] for example in examples]))
            for view, examples in views.items()
            for name in examples[0]
        }

    def _example(self, draws: Draws, *, is_whole: bool) -> dict[str, np.ndarray]:
        kind, largest = draws.pick(self.of.kinds), self.of.sizes["large"][1]
        smallest = self.smallest if is_whole else self.of.sizes["small"][0]
        sides = _log_uniform(draws, smallest, largest)
        sample = draws.pick(draw_samples(draws, "train", kind, sides, version=self.version))
        view = (0, 0, SIDE, SIDE)
        if not is_whole:
            view = sample.box or crop_box(draws, [draws.pick(sample.scene.placed)])
        more = others if self.version == "finesearch" else others2
        asked = [sample.question, *more(draws, sample, view, self.course.questions - 1)]
        return {**scene_arrays(sample.scene, view), **self._texts(draws, asked)}

    def _texts(self, draws: Draws, asked: list[ask.Question]) -> dict[str, np.ndarray]:
        """Questions with their responses, and which tokens are learnt."""
        shape = (self.course.questions, self.course.length)
        tokens, learnt = np.full(shape, self.pad, np.int16), np.zeros(shape, bool)
        for row, one in enumerate(asked):
            opening = [*self.before, *self._encode(one.text), *self.between]
            response = [*self._encode(one.responses[draws.pick(self.course.styles)]), self.end]
            end = len(opening) + len(response)
            tokens[row, :end] = [*opening, *response]
            learnt[row, len(opening) : end] = True
        return {"tokens": tokens, "learnt": learnt}

    def _encode(self, text: str) -> list[int]:
        if text not in self._tokens:
            self._tokens[text] = self.tokenizer.encode(text)
        return self._tokens[text]


def others(draws: Draws, sample: Sample, view: Box, count: int) -> list[ask.Question]:
    """Return more questions that the view of a scene can answer."""
    scene = sample.scene
    visible = [placed for placed in scene.placed if _is_inside(placed, view)]
    names = [placed.thing.name for placed in scene.placed if placed.thing.shape == "plate"]
    colours = [
        (placed.thing.shape, placed.thing.colour)
        for placed in scene.placed
        if placed.thing.shape != "plate"
    ]
    absent = [name for name in catalogue().categories if name not in names]
    possible: list[ask.Question] = []
    for placed in visible:
        thing = placed.thing
        if thing.shape == "plate":
            if names.count(thing.name) == 1:
                possible += [ask.plate_question(placed)] * 2
                possible.append(ask.existence_question(thing.name, placed))
        elif colours.count((thing.shape, thing.colour)) == 1:
            possible += [ask.reading_question(placed)] * 3
    while len(possible) < count or (possible and draws.chance(0.15)):
        possible.append(ask.existence_question(draws.pick(absent)))
    return draws.some(possible, count)


def others2(draws: Draws, sample: Sample, view: Box, count: int) -> list[ask.Question]:
    """Return more questions of the second version that the view of a scene can answer."""
    placed = sample.scene.placed
    visible = [each for each in placed if _is_inside(each, view)]
    names = [each.thing.name for each in placed if each.thing.shape == "plate"]
    coloured = [(each.thing.shape, each.thing.colour) for each in placed]
    possible = [sample.question]
    for each in visible:
        thing = each.thing
        if thing.shape == "plate" and names.count(thing.name) == 1:
            possible += [ask2.plate_question(each)] * 2
        elif thing.shape != "plate" and coloured.count((thing.shape, thing.colour)) == 1:
            possible += [ask2.reading_question(each)] * 3
    if sample.kind in ("neighbour", "existence"):
        one, two = placed[:2]
        known, found = draws.some((one, two), 2)
        wrong = draws.pick([name for name in catalogue().categories if name != found.thing.name])
        possible += [
            ask2.neighbour_question(one, two, first=True),
            ask2.neighbour_question(one, two, first=False),
            ask2.beside_question(found.thing.name, known, found),
            ask2.beside_question(wrong, known, found),
        ]
    if sample.kind == "count":
        block = placed[:4]
        possible += [ask2.count_question(each.thing.name, block) for each in block]
    return [draws.pick(possible) for _ in range(count)]


def _is_inside(placed: Placed, view: Box) -> bool:
    x0, y0, x1, y1 = placed.box
    return view[0] <= x0 and view[1] <= y0 and x1 <= view[2] and y1 <= view[3]


def _log_uniform(draws: Draws, low: int, high: int) -> tuple[int, int]:
    side = round(low * (high / low) ** (draws.below(1 << 20) / (1 << 20)))
    return (side, side)


def scene_arrays(scene: Scene, view: Box) -> dict[str, np.ndarray]:
    """Return a view of a scene in numbers, as the GPU draws it and labels its image tokens."""
    listed = catalogue()
    categories = {name: index for index, name in enumerate(listed.categories)}
    things = np.full((SLOTS, 7), -1, np.int16)
    for slot, placed in enumerate(scene.placed[:SLOTS]):
        thing = placed.thing
        shape = SHAPES.index(thing.shape)
        value = categories[thing.name] if shape == 0 else int(thing.name)
        things[slot] = (
            shape,
            COLOUR_NAMES.index(thing.colour),
            thing.picture,
            value,
            placed.x,
            placed.y,
            placed.size,
        )
    backdrop = (scene.background.index, *scene.window, int(scene.is_mirrored), *scene.gains)
    return {
        "things": things,
        "backdrop": np.array(backdrop, np.int16),
        "view": np.array(view, np.int16),
    }
