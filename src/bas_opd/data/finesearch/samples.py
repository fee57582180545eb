"""The eight kinds of FineSearch question, each with its scene.

Each kind mirrors a benchmark of fine-grained perception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bas_opd.data.finesearch.assets import COLOURS, Background, Split, catalogue
from bas_opd.data.finesearch.questions import (
    Question,
    choice_question,
    count_question,
    existence_question,
    neighbour_question,
    plate_question,
    position_question,
    reading_question,
)
from bas_opd.data.finesearch.scenes import (
    SIZES,
    Box,
    Draws,
    Scene,
    Size,
    Supply,
    Thing,
    crop_box,
    draw_scene,
    plate_colours,
    supply,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One example before it is drawn; `box` is None if it has no crop."""

    kind: str
    scene: Scene
    question: Question
    box: Box | None


def sample(
    split: Split,
    size: Size,
    seed: int,
    index: int,
    kind: str,
    *,
    backgrounds: Path | None = None,
) -> tuple[Sample, ...]:
    """Return the example at an address: one sample, or the two of a pair.

    `backgrounds` is a folder of pictures that replace the packaged backgrounds.
    """
    draws = Draws("finesearch", split, size, seed, index, kind)
    return draw_samples(draws, split, kind, SIZES[size], backgrounds=backgrounds)


def draw_samples(
    draws: Draws,
    split: Split,
    kind: str,
    sides: tuple[int, int],
    *,
    backgrounds: Path | None = None,
) -> tuple[Sample, ...]:
    """Draw the example or the pair of a kind.

    `sides` are the smallest and the largest side of a thing in pixels.
    """
    return _BUILDERS[kind](_Setting.drawn(draws, supply(split, backgrounds), sides))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What all kinds of scene have in common."""

    draws: Draws
    supply: Supply
    background: Background
    names: list[str]
    """Categories in random order, without those that the background might show."""
    sides: tuple[int, int]
    others: int
    """Number of other clusters besides the one in question."""

    @classmethod
    def drawn(cls, draws: Draws, source: Supply, sides: tuple[int, int]) -> _Setting:
        background = draws.pick(source.backgrounds)
        fitting = [name for name in source.pictures if name not in background.shows]
        return cls(
            draws=draws,
            supply=source,
            background=background,
            names=draws.some(fitting, 10),
            sides=sides,
            others=draws.between(4, 6) if sides[1] < 50 else draws.between(2, 4),
        )

    def plate(self, category: str) -> Thing:
        """Return an object on a plate of a contrasting colour."""
        picture = self.draws.pick(self.supply.pictures[category])
        colour = self.draws.pick(plate_colours(picture))
        return Thing(shape="plate", name=category, picture=picture.index, colour=colour)

    def sign(self, colour: str) -> Thing:
        number = self.draws.between(10, 99)
        face = self.draws.pick(self.supply.faces)
        return Thing(shape="sign", name=str(number), picture=face, colour=colour)

    def note(self, colour: str) -> Thing:
        digit = self.draws.below(10)
        picture = self.draws.pick(self.supply.digits[digit])
        return Thing(shape="note", name=str(digit), picture=picture, colour=colour)

    def scene(self, first: Sequence[Thing], rest: Sequence[Thing], *, across: bool = True) -> Scene:
        clusters = [first, *([thing] for thing in rest)]
        return draw_scene(self.draws, self.background, clusters, self.sides, across=across)

    def distractors(self, names: Sequence[str]) -> list[Thing]:
        """Return distractors: plates, and sometimes a sign or a note."""
        colours = self.draws.some(list(COLOURS), 2)
        things = [self.plate(name) for name in names[: self.others]]
        if self.draws.chance(0.4):
            things[-1] = self.sign(colours[0])
        if self.draws.chance(0.4):
            things[0] = self.note(colours[1])
        return things


def _attribute(setting: _Setting) -> tuple[Sample, ...]:
    name, *rest = setting.names
    scene = setting.scene([setting.plate(name)], setting.distractors(rest))
    return _about(setting, "attribute", scene, 1, plate_question)


def _position(setting: _Setting) -> tuple[Sample, ...]:
    first, second, *rest = setting.names
    across = setting.draws.chance(0.5)
    things = [setting.plate(first), setting.plate(second)]
    scene = setting.scene(things, setting.distractors(rest), across=across)
    is_asked_first = setting.draws.chance(0.5)
    return _about(
        setting, "position", scene, 2, lambda a, b: position_question(a, b, first=is_asked_first)
    )


def _neighbour(setting: _Setting) -> tuple[Sample, ...]:
    first, second, *rest = setting.names
    things = [setting.plate(first), setting.plate(second)]
    scene = setting.scene(things, setting.distractors(rest), across=setting.draws.chance(0.5))
    is_asked_first = setting.draws.chance(0.5)
    return _about(
        setting, "neighbour", scene, 2, lambda a, b: neighbour_question(a, b, first=is_asked_first)
    )


def _reading(setting: _Setting, kind: str, make: Callable[[str], Thing]) -> tuple[Sample, ...]:
    asked, other = setting.draws.some(list(COLOURS), 2)
    target, decoy = make(asked), make(other)
    plates = [setting.plate(name) for name in setting.names[: setting.others - 1]]
    scene = setting.scene([target], [decoy, *plates])
    return _about(setting, kind, scene, 1, reading_question)


def _count(setting: _Setting) -> tuple[Sample, ...]:
    name, *rest = setting.names
    many = setting.draws.between(1, 4)
    # Which spots of the block hold the category is random, so that no spot is special.
    spots = set(setting.draws.some(range(4), many))
    block = [setting.plate(name if spot in spots else rest[spot]) for spot in range(4)]
    scene = setting.scene(block, setting.distractors(rest[4:])[: setting.others - 2])
    return _about(setting, "count", scene, 4, lambda *_: count_question(name, many))


def _existence(setting: _Setting) -> tuple[Sample, ...]:
    name, absent, *rest = setting.names
    scene = setting.scene([setting.plate(name)], setting.distractors(rest))
    if setting.draws.chance(0.5):
        return _about(setting, "existence", scene, 1, lambda plate: existence_question(name, plate))
    question = existence_question(absent)
    return (Sample(kind="existence", scene=scene, question=question, box=None),)


def _pair(setting: _Setting) -> tuple[Sample, ...]:
    """Return two pictures that differ in one plate only."""
    name, *rest = setting.names
    target = setting.plate(name)
    picture = catalogue().pictures[target.picture]
    fitting = [colour for colour in plate_colours(picture) if colour != target.colour]
    other = setting.draws.pick(fitting)
    scene = setting.scene([target], setting.distractors(rest))
    box = crop_box(setting.draws, scene.placed[:1])
    first, second = setting.draws.some([target.colour, other], 2)
    samples = []
    for colour in (target.colour, other):
        plate, *others = scene.placed
        plate = replace(plate, thing=replace(plate.thing, colour=colour))
        samples.append(
            Sample(
                kind="pair",
                scene=replace(scene, placed=(plate, *others)),
                question=choice_question(plate, first, second),
                box=box,
            )
        )
    return tuple(samples)


def _about(
    setting: _Setting, kind: str, scene: Scene, count: int, ask: Callable[..., Question]
) -> tuple[Sample, ...]:
    """Return the sample about the first cluster of a scene, which has `count` things."""
    cluster = scene.placed[:count]
    box = crop_box(setting.draws, cluster)
    return (Sample(kind=kind, scene=scene, question=ask(*cluster), box=box),)


_BUILDERS: dict[str, Callable[[_Setting], tuple[Sample, ...]]] = {
    "attribute": _attribute,
    "position": _position,
    "number": lambda setting: _reading(setting, "number", setting.sign),
    "digit": lambda setting: _reading(setting, "digit", setting.note),
    "count": _count,
    "existence": _existence,
    "neighbour": _neighbour,
    "pair": _pair,
}
KINDS = tuple(_BUILDERS)
