"""The kinds of FineSearch question, each with its scene, in two versions of the set.

Each kind mirrors a benchmark of fine-grained perception. In the second version the student's view
shows what is asked for (things are larger), a "no" has a crop, and responses may be long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType

from bas_opd.data.finesearch import questions, questions2
from bas_opd.data.finesearch.assets import COLOURS, Background, Split, catalogue
from bas_opd.data.finesearch.questions import Question
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
    version: str = "finesearch",
) -> tuple[Sample, ...]:
    """Return the example at an address: one sample, or the two of a pair.

    `backgrounds` is a folder of pictures that replace the packaged backgrounds.
    """
    draws = Draws(version, split, size, seed, index, kind)
    sides = VERSIONS[version].sizes[size]
    return draw_samples(draws, split, kind, sides, backgrounds=backgrounds, version=version)


def draw_samples(
    draws: Draws,
    split: Split,
    kind: str,
    sides: tuple[int, int],
    *,
    backgrounds: Path | None = None,
    version: str = "finesearch",
) -> tuple[Sample, ...]:
    """Draw the example or the pair of a kind.

    `sides` are the smallest and the largest side of a thing in pixels.
    """
    of = VERSIONS[version]
    return of.builders[kind](_Setting.drawn(draws, supply(split, backgrounds), sides, of))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What all kinds of scene have in common."""

    draws: Draws
    supply: Supply
    background: Background
    fitting: list[str]
    """Categories that the background does not show."""
    names: list[str]
    """Some of them in random order."""
    sides: tuple[int, int]
    others: int
    """Number of other clusters besides the one in question."""
    ask: ModuleType
    """The functions that word the questions."""

    @classmethod
    def drawn(
        cls, draws: Draws, source: Supply, sides: tuple[int, int], version: Version
    ) -> _Setting:
        background = draws.pick(source.backgrounds)
        shown = background.shows | version.shows.get(background.name, frozenset())
        fitting = [name for name in source.pictures if name not in shown]
        return cls(
            draws=draws,
            supply=source,
            background=background,
            fitting=fitting,
            names=draws.some(fitting, 10),
            sides=sides,
            others=draws.between(4, 6) if sides[1] < 50 else draws.between(2, 4),
            ask=version.questions,
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

    def absent(self, scene: Scene) -> list[str]:
        """Return the categories that neither the scene nor its background shows."""
        drawn = {placed.thing.name for placed in scene.placed}
        return [name for name in self.fitting if name not in drawn]

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
    return _about(setting, "attribute", scene, 1, setting.ask.plate_question)


def _position(setting: _Setting) -> tuple[Sample, ...]:
    first, second, *rest = setting.names
    across = setting.draws.chance(0.5)
    things = [setting.plate(first), setting.plate(second)]
    scene = setting.scene(things, setting.distractors(rest), across=across)
    is_asked_first = setting.draws.chance(0.5)
    return _about(
        setting,
        "position",
        scene,
        2,
        lambda a, b: setting.ask.position_question(a, b, first=is_asked_first),
    )


def _neighbour(setting: _Setting) -> tuple[Sample, ...]:
    first, second, *rest = setting.names
    things = [setting.plate(first), setting.plate(second)]
    scene = setting.scene(things, setting.distractors(rest), across=setting.draws.chance(0.5))
    is_asked_first = setting.draws.chance(0.5)
    return _about(
        setting,
        "neighbour",
        scene,
        2,
        lambda a, b: setting.ask.neighbour_question(a, b, first=is_asked_first),
    )


def _reading(setting: _Setting, kind: str, make: Callable[[str], Thing]) -> tuple[Sample, ...]:
    asked, other = setting.draws.some(list(COLOURS), 2)
    target, decoy = make(asked), make(other)
    plates = [setting.plate(name) for name in setting.names[: setting.others - 1]]
    scene = setting.scene([target], [decoy, *plates])
    return _about(setting, kind, scene, 1, setting.ask.reading_question)


def _count(setting: _Setting) -> tuple[Sample, ...]:
    name, *rest = setting.names
    many = setting.draws.between(1, 4)
    # Which spots of the block hold the category is random, so that no spot is special.
    spots = set(setting.draws.some(range(4), many))
    block = [setting.plate(name if spot in spots else rest[spot]) for spot in range(4)]
    scene = setting.scene(block, setting.distractors(rest[4:])[: setting.others - 2])
    return _about(
        setting, "count", scene, 4, lambda *block: setting.ask.count_question(name, block)
    )


def _existence(setting: _Setting) -> tuple[Sample, ...]:
    name, absent, *rest = setting.names
    scene = setting.scene([setting.plate(name)], setting.distractors(rest))
    if setting.draws.chance(0.5):
        return _about(
            setting,
            "existence",
            scene,
            1,
            lambda plate: setting.ask.existence_question(name, plate),
        )
    question = setting.ask.existence_question(absent)
    return (Sample(kind="existence", scene=scene, question=question, box=None),)


def _beside(setting: _Setting) -> tuple[Sample, ...]:
    """Ask what is at a place: for "no" as for "yes", the crop shows the place asked about."""
    known, found, *rest = setting.names
    things = [setting.plate(known), setting.plate(found)]
    scene = setting.scene(things, setting.distractors(rest), across=setting.draws.chance(0.5))
    elsewhere = [p.thing.name for p in scene.placed[2:] if p.thing.shape == "plate"]
    name = found
    if setting.draws.chance(0.5):  # Half of the things that are not there are somewhere else.
        is_elsewhere = bool(elsewhere) and setting.draws.chance(0.5)
        name = setting.draws.pick(elsewhere if is_elsewhere else setting.absent(scene))
    return _about(setting, "existence", scene, 2, partial(setting.ask.beside_question, name))


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
                question=setting.ask.choice_question(plate, first, second),
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


_Builders = dict[str, Callable[[_Setting], tuple[Sample, ...]]]

_FIRST: _Builders = {
    "attribute": _attribute,
    "position": _position,
    "number": lambda setting: _reading(setting, "number", setting.sign),
    "digit": lambda setting: _reading(setting, "digit", setting.note),
    "count": _count,
    "existence": _existence,
    "neighbour": _neighbour,
    "pair": _pair,
}
_SECOND: _Builders = {kind: build for kind, build in _FIRST.items() if kind != "position"} | {
    "existence": _beside
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the set: its kinds of question, their wording and the sizes of things."""

    builders: _Builders
    questions: ModuleType
    sizes: Mapping[Size, tuple[int, int]]
    """Smallest and largest side of a thing in pixels."""
    shows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Background -> categories it resembles, besides those that the catalogue lists."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.builders)


VERSIONS: dict[str, Version] = {
    "finesearch": Version(builders=_FIRST, questions=questions, sizes=SIZES),
    "finesearch2": Version(
        builders=_SECOND,
        questions=questions2,
        sizes={"small": (32, 44), "large": (72, 92)},
        shows={
            "astronaut": frozenset({"rocket", "plane", "star"}),
            "camera": frozenset({"tree"}),
            "cell": frozenset({"ball"}),
            "clock_motion": frozenset({"ball"}),
            "retina": frozenset({"ball"}),
            "rocket": frozenset({"star"}),
        },
    ),
}
KINDS = VERSIONS["finesearch"].kinds
