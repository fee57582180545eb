"""A benchmark: how its rows are read, the question of each, and its numbers."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bas_opd.errors import ConfigError, DataError
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS, Metric
from bas_opd.evaluate.benchmarks.reading import Record
from bas_opd.evaluate.benchmarks.summary import Measure, Scored, Summary, summarise
from bas_opd.evaluate.questions import Question, View

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSet:
    """The questions of a benchmark as they were read."""

    benchmark: str
    folder: Path
    questions: tuple[Question, ...]
    fingerprint: str
    """A hash of ids, prompts, references, options, groups and what is cheaply known of pictures.

    The order of the rows does not matter to it.
    """
    is_partial: bool
    """Whether it is accepted although it differs from the whole benchmark."""

    def __len__(self) -> int:
        return len(self.questions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark."""

    name: str
    title: str
    expected: int | None
    """How many questions it has; None if that is not fixed."""
    obtain: str
    """A sentence on how to get it."""
    read: Callable[[Path], Sequence[Record]]
    """Takes a folder, returns its rows; empty if the benchmark is not there."""
    read_crops: Callable[[Path], Sequence[Record]] | None = None
    """The same with the privileged crop as picture, without rows that have none."""
    ask: Callable[[Sequence[Record]], Sequence[Question]]
    """Takes the rows, returns one question for each, in their order."""
    metric: Callable[[Sequence[Scored]], Metric] = lambda _: ALL_QUESTIONS
    """Takes the answers, returns the metric of the primary number."""
    also: Callable[[Sequence[Scored]], tuple[Measure, ...]]
    """Takes the answers, returns further numbers."""
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Group -> part -> how many questions it has."""
    even_parts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Group -> how many parts it has, under any names, and how many questions each has."""
    is_right: Callable[[str, str], bool] | None = None
    """Takes output and reference, for a benchmark with a rule of its own; else `answers` reads the
    output by the question's form."""
    files: tuple[str, ...] = ()
    """Patterns of the files to download if a hub id is given."""

    def load(self, source: Path | str, *, partial: bool = False, view: View = "full") -> LoadedSet:
        """Read the benchmark from a folder, or from the hub if an id is given and can be reached.

        A different number of questions than the benchmark has is an error, unless `partial` is set.
        """
        read = self.read if view == "full" else self.read_crops
        if read is None:
            raise ConfigError(f"{self.title} has no crops. Evaluate on its full pictures.")
        folder = self._folder(source)
        records = read(folder)
        if not records:
            raise DataError(f"{self.title} is not in {folder}: no rows were found. {self.obtain}")
        questions = self.ask(records)
        seen: set[str] = set()
        for record, question in zip(records, questions, strict=True):
            if question.id in seen:
                raise record.refused(f"The id {question.id!r} is used twice.")
            seen.add(question.id)
        difference = self._difference(questions)
        if difference and not partial:
            raise DataError(
                f"{self.title} in {folder} {difference}. Fetch it again: {self.obtain} Or accept "
                "it as it is with --partial, and the results will say so."
            )
        return LoadedSet(
            benchmark=self.name,
            folder=folder,
            questions=tuple(questions),
            fingerprint=_fingerprint(records, questions),
            is_partial=bool(difference),
        )

    def summarise(self, scored: Sequence[Scored]) -> Summary:
        """Return this benchmark's numbers, the accuracy over all questions among them."""
        metric = self.metric(scored)
        every = () if metric == ALL_QUESTIONS else (ALL_QUESTIONS.measure(scored),)
        return summarise(
            self.name,
            scored,
            expected=self.expected,
            is_partial=bool(self._difference(scored)),
            primary=metric.measure,
            also=(*every, *self.also(scored)),
        )

    def _folder(self, source: Path | str) -> Path:
        folder = Path(source)
        if folder.is_dir():
            return folder
        if isinstance(source, str) and self.files and _HUB_ID.fullmatch(source):
            return _fetched(source, self.files, self.obtain)
        raise DataError(f"{self.title} is not there: {source} is not a folder. {self.obtain}")

    def _difference(self, questions: Sequence[Question] | Sequence[Scored]) -> str:
        """Return how the numbers of questions differ from those of the benchmark, if they do."""
        odd = []
        if self.expected not in (None, len(questions)):
            odd.append(f"has {len(questions):,} questions, where {self.expected:,} were expected")
        for group, parts in self.parts.items():
            found = Counter(question.groups.get(group) for question in questions)
            odd += [
                f"has {found[part]:,} of {part} {group}, where {number:,} were expected"
                for part, number in parts.items()
                if found[part] != number
            ]
        for group, (number, size) in self.even_parts.items():
            found = Counter(question.groups.get(group) for question in questions)
            whole = sum(count == size for count in found.values())
            if whole != number:
                odd.append(
                    f"has {whole:,} whole groups of {size:,} by {group}, where {number:,} were "
                    "expected"
                )
        return "; it ".join(odd)


def _fingerprint(records: Sequence[Record], questions: Sequence[Question]) -> str:
    lines = sorted(
        json.dumps(
            [
                question.id,
                question.prompt,
                question.form,
                question.reference,
                sorted(question.options.items()),
                sorted(question.groups.items()),
                record.sketch,
            ]
        )
        for record, question in zip(records, questions, strict=True)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _fetched(hub_id: str, files: tuple[str, ...], obtain: str) -> Path:
    """Return the folder of a dataset's files from the hub; they are read, never run."""
    try:
        hub = importlib.import_module("huggingface_hub")
        return Path(hub.snapshot_download(hub_id, repo_type="dataset", allow_patterns=list(files)))
    # The library raises errors of a dozen kinds from network, hub and disk alike.
    except Exception as error:
        raise DataError(
            f"There is no folder {hub_id}, and the hub has no dataset of that name that could be "
            f"reached ({error}). {obtain}"
        ) from error
