"""Endless training scenes as arrays, made by worker processes while the GPU trains.

The scenes are FineSearch's own, of its training split. Whole pictures show things that are large
enough to be found; crops show things of every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from bas_opd.data.finesearch import questions as ask
from bas_opd.data.finesearch.assets import COLOURS, SIDE, catalogue
from bas_opd.data.finesearch.samples import KINDS, draw_samples
from bas_opd.data.finesearch.scenes import Box, Draws, Placed, Scene, Shape, crop_box
from bas_opd.model.processing import Processor

SLOTS = 9
"""Most things in a scene."""
QUESTIONS = 4
"""Questions about each picture: it is encoded once for all of them."""
LENGTH = 44
"""Most tokens of a question with its response and the template around them."""

SHAPES: tuple[Shape, ...] = get_args(Shape)
COLOUR_NAMES = tuple(COLOURS)


class Scenes(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of scenes with questions, for `whole` whole pictures and `crops` crops.

    `smallest` is the side in pixels of the smallest thing in a whole picture.
    """

    def __init__(
        self, processor: Processor, *, whole: int, crops: int, smallest: int, seed: int
    ) -> None:
        self.tokenizer, self.seed = processor.tokenizer, seed
        self.whole, self.crops, self.smallest = whole, crops, smallest
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
        kind = draws.pick(KINDS)
        sizes = (self.smallest, 92) if is_whole else (24, 92)
        sample = draws.pick(draw_samples(draws, "train", kind, _log_uniform(draws, *sizes)))
        view = (0, 0, SIDE, SIDE)
        if not is_whole:
            view = sample.box or crop_box(draws, [draws.pick(sample.scene.placed)])
        asked = [sample.question, *others(draws, sample.scene, view, QUESTIONS - 1)]
        return {**scene_arrays(sample.scene, view), **self._texts(draws, asked)}

    def _texts(self, draws: Draws, asked: list[ask.Question]) -> dict[str, np.ndarray]:
        """Questions with their responses, and which tokens are learnt."""
        tokens = np.full((QUESTIONS, LENGTH), self.pad, np.int16)
        learnt = np.zeros((QUESTIONS, LENGTH), bool)
        for row, one in enumerate(asked):
            opening = [*self.before, *self._encode(one.text), *self.between]
            response = [*self._encode(one.responses[draws.pick((0, 0, 1, 1, 2))]), self.end]
            end = len(opening) + len(response)
            tokens[row, :end] = [*opening, *response]
            learnt[row, len(opening) : end] = True
        return {"tokens": tokens, "learnt": learnt}

    def _encode(self, text: str) -> list[int]:
        if text not in self._tokens:
            self._tokens[text] = self.tokenizer.encode(text)
        return self._tokens[text]


def others(draws: Draws, scene: Scene, view: Box, count: int) -> list[ask.Question]:
    """Return more questions that the view of a scene can answer."""
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
