"""The tables of a page, rendered from the files that benchmarks have written.

    python -m bas_opd.bench.page docs/performance.md

A table stands between `<!-- bench: NAME -->` and `<!-- end -->`; its numbers are in
`results/bench/NAME.json` beside the page. What is outside such marks stays as it is. A mark that
cannot be read is an error: its table would never change again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bas_opd.errors import BasOpdError, ConfigError, DataError, explain_failure
from bas_opd.files import write_text
from bas_opd.text import markdown_table

FILES = Path("results") / "bench"
MARKED = re.compile(
    r"(<!-- bench: ([a-z0-9-]+) -->\n)((?:(?!<!--\s*bench).)*?)(<!-- end -->)", re.DOTALL
)
MARK = re.compile(r"<!--\s*bench.*", re.IGNORECASE)
BUSY = 0.5
"""Load for each core from which a page says that other programs ran."""


def rendered(page: str, folder: Path) -> str:
    """Return a page with every marked table as the files in a folder have it."""

    def table(found: re.Match[str]) -> str:
        start, name, _, end = found.groups()
        return start + "\n".join(["", *_lines(folder / f"{name}.json"), "", end])

    known = {found.start() for found in MARKED.finditer(page)}
    for mark in MARK.finditer(page):
        if mark.start() not in known:
            line = page.count("\n", 0, mark.start()) + 1
            raise DataError(
                f"The mark {mark[0]} in line {line} cannot be read. Write `<!-- bench: NAME -->` "
                "at the end of its line, NAME in a-z, 0-9 and -, and `<!-- end -->` after its "
                "table, before the next mark."
            )
    return MARKED.sub(table, page)


def read(path: Path) -> dict[str, Any]:
    """Read the numbers of a benchmark."""
    try:
        numbers = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(explain_failure(error)) from error
    except ValueError as error:
        raise DataError(f"{path} holds no JSON ({error}). Run the benchmark again.") from error
    if not isinstance(numbers, dict) or not _kinds(numbers):
        known = ", ".join(KINDS)
        raise DataError(f"{path} has no numbers of a benchmark (one of {known}). Run it again.")
    return numbers


def _lines(path: Path) -> list[str]:
    numbers = read(path)
    try:
        return list(_blocks(numbers))
    except Exception as error:  # A file can lack anything, or have it in another shape.
        lack = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} cannot be shown ({lack}). Run the benchmark again.") from error


def _kinds(numbers: Mapping[str, Any]) -> list[str]:
    return [kind for kind in KINDS if kind in numbers]


def _blocks(numbers: Mapping[str, Any]) -> Iterator[str]:
    if command := numbers.get("command"):
        yield from ("```sh", command, "```", "")
    yield _place(numbers)
    for kind in _kinds(numbers):
        yield from KINDS[kind](numbers[kind])
    yield from (f"\n{reason}" for reason in numbers.get("failed", []))


def _place(numbers: Mapping[str, Any]) -> str:
    machine, is_gpu = numbers["machine"], _device(numbers).startswith("cuda")
    where = machine["gpu"] if is_gpu else machine["cpu"]
    packages = machine["packages"]
    words = [where, f"torch {packages['torch']}", f"transformers {packages['transformers']}"]
    load, cores = machine.get("load", 0.0), machine.get("cores") or 1
    if not is_gpu and load > BUSY * cores:
        words.append(f"a load of {load:.1f} by this and other programs, so ratios count")
    return f"{'; '.join([*words, numbers['date']])}."


def _device(numbers: Mapping[str, Any]) -> str:
    settings = numbers.get("settings", {})
    given = numbers.get("device") or settings.get("device")
    return given or ("cuda" if "steps" in numbers else "cpu")


def _comparisons(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One table for each phase: its sides, ours first."""
    for each in found:
        sides = each["sides"]
        has_peaks = sides[0]["peak_gib"] is not None
        heads = ["seconds", "tokens", *(["GiB"] if has_peaks else [])]
        yield from ("", f"{each['name']}: {each['shape']}", "")
        yield markdown_table(
            ["", *heads, "ours takes of its time", "of its tokens"],
            (
                [
                    side["side"],
                    f"{side['median_seconds']:.3g}",
                    f"{side['processed_tokens']:,}",
                    *([f"{side['peak_gib']:.2f}"] if has_peaks else []),
                    *(_shares(side) if place else ["", ""]),
                ]
                for place, side in enumerate(sides)
            ),
        )
        yield from (f"\nLeft out: {reason}" for reason in each["skipped"])


def _shares(side: Mapping[str, Any]) -> list[str]:
    """What ours takes of the time and of the tokens of a side."""
    share = side["share_of_its_time"]
    if side.get("is_floor", False):  # Older files do not say so.
        return [f"{share:.1f} times this floor", ""]
    return [f"{share:.2f}", f"{side['share_of_its_tokens']:.2f}"]


def _steps(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The phases of every step; the first warms the device up."""
    rows = [
        [phase, *(f"{step['seconds'][phase]:.2f}" for step in found)]
        for phase in found[-1]["seconds"]
    ]
    yield ""
    yield markdown_table(
        ["seconds", *(f"step {step['step'] + 1}" for step in found)],
        [
            *rows,
            ["all phases", *(f"{sum(step['seconds'].values()):.2f}" for step in found)],
            ["rows and tokens of the teacher", *(_asked(step) for step in found)],
            ["tokens of the student", *(f"{step['student_tokens']:,}" for step in found)],
            ["peak memory, GiB", *(f"{step['peak_gib']:.1f}" for step in found)],
        ],
    )


def _asked(step: Mapping[str, Any]) -> str:
    return f"{step['queries']}, {step['teacher_tokens']:,}"


def _seconds(found: Mapping[str, float]) -> Iterator[str]:
    yield ""
    yield markdown_table(["", "seconds"], ([name, f"{each:.3g}"] for name, each in found.items()))


def _arms(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    columns = list(next(iter(found.values())))
    yield ""
    yield markdown_table(
        ["", *(column.replace("_", " ") for column in columns)],
        ([name, *(_short(each[column]) for column in columns)] for name, each in found.items()),
    )


def simulated(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was measured for a simulation, and the table of its steps."""
    yield (
        f"\nLengths of {found['prompts']:,} prompts and {found['responses']:,} responses; "
        f"{found['exchanges']:g} exchanges of objects a step, {found['exchange_ms']:.2f} ms each "
        "between 2 processes."
    )
    columns = {n: each for n, each in SIMULATED.items() if n != "replicas" or _is_grouped(found)}
    yield ""
    yield markdown_table(
        [heading for heading, _ in columns.values()],
        (
            [f"{step[name]:{form}}".replace("%", " %") for name, (_, form) in columns.items()]
            for step in found["steps"]
        ),
    )


def _is_grouped(found: Mapping[str, Any]) -> bool:
    return any(step["replicas"] > 1 for step in found["steps"])


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.3f}"


KINDS = {
    "comparisons": _comparisons,
    "steps": _steps,
    "seconds": _seconds,
    "arms": _arms,
    "simulation": simulated,
}
"""Key of a file -> how its numbers are shown."""
SIMULATED = {
    "gpus": ("GPUs", ","),
    "replicas": ("groups", ","),
    "prompts": ("prompts", ","),
    "sample_gb": ("GB to sample", ".1f"),
    "score_gb": ("GB to score", ".1f"),
    "learn_gb": ("GB to learn", ".1f"),
    "summed_gb": ("GB of gradients", ".1f"),
    "responses_gb": ("GB of responses", ".3f"),
    "idle_share": ("idle", ".0%"),
    "idle_share_of_28": ("idle with 28 prompts", ".0%"),
    "computing": ("computing, s", ".2f"),
    "idle": ("idle, s", ".2f"),
    "moving": ("weights and gradients, s", ".2f"),
    "responses": ("responses, s", ".2f"),
    "others": ("other objects, s", ".2f"),
    "select": ("selection, s", ".2f"),
    "records": ("records, s", ".2f"),
    "packing": ("packing, s", ".2f"),
    "total": ("step, s", ".1f"),
    "computing_share": ("computing", ".0%"),
}
"""Number of a simulated step -> its column, and how it is written."""


def main(paths: Sequence[str]) -> None:
    """Render pages in place."""
    if not paths:
        raise ConfigError("No page is named. Name one, such as docs/performance.md.")
    for path in map(Path, paths):
        try:
            before = path.read_text("utf-8")
            after = rendered(before, path.parent / FILES)
            if after != before:
                write_text(path, after)
        except OSError as error:
            raise DataError(explain_failure(error)) from error
        except DataError as error:
            raise DataError(f"The page {path} cannot be rendered: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"The page {path} is not UTF-8 ({error}). Save it as UTF-8.") from error


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BasOpdError as error:
        sys.exit(str(error))
