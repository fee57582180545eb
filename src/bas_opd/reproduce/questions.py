"""The questions behind the outcomes of a folder of results: kind and picture of each. No torch."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bas_opd import disk
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError, RunDirectoryError
from bas_opd.evaluate.benchmarks.finesearch import HALVES, PAIR
from bas_opd.files import write_text
from bas_opd.reproduce.results import RunResult
from bas_opd.types import Example

QUESTIONS = "questions.csv"
COLUMNS = ["id", "kind", "cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions in the order of `RunResult.outcomes`."""

    kinds: tuple[str, ...]
    clusters: tuple[str, ...]
    """Questions on one picture, or of one pair, have the same."""

    def check(self, results: Sequence[RunResult]) -> None:
        """Refuse results whose outcomes are not of these questions."""
        for result in results:
            right = Counter(
                kind
                for kind, outcome in zip(self.kinds, result.outcomes, strict=False)
                if outcome == "1"
            )
            counts = {kind: (n, right[kind]) for kind, n in Counter(self.kinds).items()}
            if counts != {kind: (each.n, each.correct) for kind, each in result.kinds.items()}:
                raise DataError(
                    f"{QUESTIONS} is not of the questions that {result.arm} with seed "
                    f"{result.seed} answered. Remove the file; `bas-opd reproduce` writes it again."
                )


def write_questions(folder: Path, questions: PreparedSet) -> None:
    """Write kind and cluster of each question beside the results; they stay as they are."""
    numbers: dict[str, int] = {}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for example in questions.examples:
        cluster = numbers.setdefault(_cluster(example), len(numbers))
        table.writerow([example.id, example.kind, cluster])
    path = folder / QUESTIONS
    if path.exists():
        if path.read_text(encoding="utf-8") != text.getvalue():
            raise RunDirectoryError(
                f"{path} is of other questions, so the results beside it are too. Choose another "
                "--out."
            )
        return
    disk.make_folder(folder, parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def _cluster(example: Example) -> str:
    if example.kind == PAIR and example.id.endswith(HALVES):
        return example.id[: -len(HALVES[0])]
    return example.image.name


def read_questions(folder: Path) -> Questions | None:
    """Read the questions of a folder of results; none where they were not kept."""
    path = folder / QUESTIONS
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    if header != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        raise DataError(f"{path} is damaged: its columns are not {', '.join(COLUMNS)}.")
    return Questions(
        kinds=tuple(kind for _, kind, _ in rows), clusters=tuple(each for *_, each in rows)
    )
