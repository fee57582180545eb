"""Check a prepared set completely: every checksum, every row, every pixel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bas_opd.data.images import open_image
from bas_opd.data.records import (
    RECORDS,
    checksum,
    confined,
    numbered_lines,
    parse_row,
    read_manifest,
    to_example,
)
from bas_opd.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a prepared set contains, and every problem in it."""

    rows: int
    with_crop: int
    kinds: dict[str, int]
    pictures: int
    problems: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return not self.problems


def check(folder: Path) -> CheckReport:
    """Recompute everything that the manifest and the records state."""
    manifest = read_manifest(folder)
    records = folder / RECORDS
    problems: list[str] = []
    kinds: Counter[str] = Counter()
    seen: set[str] = set()
    with_crop = 0

    if checksum(records) != manifest.records_sha256:
        problems.append(f"{RECORDS} has changed since it was prepared.")
    for number, line in numbered_lines(records):
        try:
            row = parse_row(line)
            to_example(folder, row, measure=True)
            if row.id in seen:
                raise DataError(f"The id {row.id!r} is used twice.")
            named = {row.image, row.crop.image if row.crop and row.crop.image else row.image}
            if unlisted := named - manifest.files.keys():
                raise DataError(f"The manifest does not list {sorted(unlisted)[0]!r}.")
        except DataError as reason:
            problems.append(f"Row {number}: {reason}")
            continue
        seen.add(row.id)
        kinds[row.kind] += 1
        with_crop += row.crop is not None

    for name, digest in manifest.files.items():
        try:
            path = confined(folder, name)
            if checksum(path) != digest:
                raise DataError(f"{name} has changed since it was prepared.")
            open_image(path)
        except DataError as reason:
            problems.append(str(reason))

    claimed = (manifest.rows, manifest.with_crop, manifest.kinds)
    if not problems and claimed != (len(seen), with_crop, dict(kinds)):
        problems.append("The counts of rows, crops or kinds do not match the manifest.")
    return CheckReport(
        rows=len(seen),
        with_crop=with_crop,
        kinds=dict(sorted(kinds.items())),
        pictures=len(manifest.files),
        problems=tuple(problems),
    )
