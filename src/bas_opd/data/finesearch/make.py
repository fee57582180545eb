"""Write FineSearch sets."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path

from bas_opd.data.finesearch.assets import SIDE, SPLITS, Split
from bas_opd.data.finesearch.render import render
from bas_opd.data.finesearch.samples import VERSIONS, Sample, sample
from bas_opd.data.finesearch.scenes import Size
from bas_opd.data.records import CropRow, PreparedSet, Row, crop_area
from bas_opd.data.writing import staged_set
from bas_opd.errors import DataError

TITLES = {"finesearch": "FineSearch", "finesearch2": "FineSearch 2"}

_CHUNK = 16
"""Examples that a worker draws at a time."""


def make_finesearch(
    folder: Path,
    *,
    split: Split,
    size: Size,
    n: int,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    backgrounds: Path | None = None,
    workers: int = 1,
    version: str = "finesearch",
    on_row: Callable[[], None] = lambda: None,
) -> PreparedSet:
    """Write a prepared set of n examples that cycle through the kinds; unset: all of its version.

    Row i depends on version, split, size, seed, kinds and i only, and on the pictures in
    `backgrounds` if given. A longer set starts with the shorter one, and the number of workers
    changes nothing. The two pictures of a pair are consecutive; the set may end with the first of a
    pair.
    """
    kinds = _check(version, split, size, n, kinds)
    with staged_set(folder) as writer, _mapper(workers) as mapped:
        draw = partial(_draw, version, split, size, seed, backgrounds)
        drawn = mapped(draw, _addresses(n, kinds))
        for name, one, picture in islice(chain.from_iterable(drawn), n):
            image = writer.store(picture, name="finesearch.bmp", place="images")
            writer.add(_row(name, one, image.name))
            on_row()
        writer.finish(
            source=f"{TITLES[version]}, split {split}, size {size}, seed {seed}, "
            f"kinds {', '.join(kinds)}" + ("" if backgrounds is None else ", own backgrounds")
        )
    return PreparedSet.load(folder)


def _check(
    version: str, split: str, size: str, n: int, kinds: Sequence[str] | None
) -> Sequence[str]:
    """Return the kinds to draw, or say what FineSearch does not have."""
    if n < 1:
        raise DataError(f"A set needs at least one example, but n is {n}. Set n to 1 or more.")
    if version not in VERSIONS:
        raise DataError(
            f"FineSearch has no version {version!r}. Choose from {', '.join(VERSIONS)}."
        )
    known_kinds = VERSIONS[version].kinds
    kinds = known_kinds if kinds is None else kinds
    if not kinds:
        raise DataError(
            f"FineSearch needs a kind of question. Choose from {', '.join(known_kinds)}."
        )
    for what, given, known in (
        ("split", [split], SPLITS),
        ("size", [size], VERSIONS[version].sizes),
        ("kind", kinds, known_kinds),
    ):
        if unknown := [value for value in given if value not in known]:
            raise DataError(
                f"{TITLES[version]} has no {what} {unknown[0]!r}. Choose from {', '.join(known)}."
            )
    return kinds


def _addresses(n: int, kinds: Sequence[str]) -> list[tuple[int, str]]:
    """Return index and kind of the examples that give n rows; a pair gives two rows."""
    addresses: list[tuple[int, str]] = []
    rows = 0
    while rows < n:
        index = len(addresses)
        kind = kinds[index % len(kinds)]
        addresses.append((index, kind))
        rows += 2 if kind == "pair" else 1
    return addresses


def _draw(
    version: str,
    split: Split,
    size: Size,
    seed: int,
    backgrounds: Path | None,
    address: tuple[int, str],
) -> list[tuple[str, Sample, bytes]]:
    """Return the id, the sample and the picture of each row of an example."""
    index, kind = address
    samples = sample(split, size, seed, index, kind, backgrounds=backgrounds, version=version)
    sides = ("",) if len(samples) == 1 else ("-a", "-b")
    name = f"{split}-{size}-{seed}-{index:06d}"
    return [(name + side, one, _bytes(one)) for side, one in zip(sides, samples, strict=True)]


def _bytes(one: Sample) -> bytes:
    """Return a picture file that is identical on every machine; compressors differ by version.

    A BMP takes 2.5 times the space of a PNG, and opens in a tenth of the time.
    """
    stream = io.BytesIO()
    render(one.scene).save(stream, "BMP")
    return stream.getvalue()


def _row(name: str, one: Sample, image: str) -> Row:
    box = one.box
    return Row(
        id=name,
        image=image,
        crop=None if box is None else CropRow(box=box, area=crop_area((SIDE, SIDE), box)),
        question=one.question.text,
        answer=one.question.answer,
        kind=one.kind,
    )


@contextmanager
def _mapper(workers: int) -> Iterator[Callable[..., Iterator]]:
    """Yield an ordered map, run by this process or by several."""
    if workers == 1:
        yield map
        return
    # Not fork: a forked process may hang if torch has started threads.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield partial(pool.map, chunksize=_CHUNK)
