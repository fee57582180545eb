"""An evaluation in three steps, each of which goes on where it stopped: generate, score, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bas_opd.answers import PARSER_VERSION
from bas_opd.errors import BasOpdError
from bas_opd.evaluate.answering import Answerer, Output
from bas_opd.evaluate.benchmarks import Benchmark, LoadedSet
from bas_opd.evaluate.benchmarks.summary import Source
from bas_opd.evaluate.concluded import Concluded, Line, digest, score_line
from bas_opd.evaluate.judge import Judge, Verdict
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.scoring import Sample, by_judge, by_rule, case_of
from bas_opd.evaluate.store import SampleStore, key_of
from bas_opd.serving.client import ServerError

OUTPUTS, SCORES = "outputs.jsonl", "scores.jsonl"
SOURCES: tuple[Source, ...] = ("rule", "judge")
MOST_REFUSED_IN_A_ROW = 20
"""So many, none of them refused before, mean that the server cannot be asked this way at all."""


class Progress(Protocol):
    """Where an evaluation shows how far it is."""

    def start(self, steps: int, what: str, *, done: int) -> None: ...
    def advance(self) -> None: ...
    def message(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One benchmark put to one model, in a folder of its own."""

    benchmark: Benchmark
    loaded: LoadedSet
    model: str
    """The model's identity: weights and decoding."""
    folder: Path
    _keys: dict[str, str] = field(init=False, repr=False)
    """Question id -> hash of all that its answer depends on; worked out once, since it is much of
    what a finished evaluation costs."""

    def __post_init__(self) -> None:
        keys = {
            question.id: key_of(
                model=self.model,
                benchmark=self.loaded.fingerprint,
                id=question.id,
                prompt=question.prompt,
            )
            for question in self.loaded.questions
        }
        object.__setattr__(self, "_keys", keys)

    def generate(self, answerer: Answerer, progress: Progress) -> None:
        """Ask every question that has no answer yet; each answer is on disk when it counts.

        A question that a server refuses has none, so the next command asks it again.
        """
        with SampleStore(self.folder / OUTPUTS) as store:
            left = [q for q in self.loaded.questions if not self._is_answered(q, store)]
            total = len(self.loaded)
            progress.start(total, f"{self.benchmark.name}: asking", done=total - len(left))
            if not left:
                return
            refused: dict[str, str] = {}
            new_in_a_row = 0
            for place, output in answerer.answers(left):
                question = left[place]
                key, line = self._keys[question.id], _output_line(question, output)
                is_new = key not in store
                if is_new or store[key] != line:
                    store.add({key: line})
                progress.advance()
                if not output.refusal:
                    new_in_a_row = 0
                    continue
                refused[question.id] = output.refusal
                new_in_a_row += is_new
                if new_in_a_row >= MOST_REFUSED_IN_A_ROW:
                    raise ServerError(self._on_refusals(refused, "So many in a row stop it here."))
        if refused:
            progress.message(self._on_refusals(refused, "They count as unscored."))

    def answered(self) -> int:
        """Return how many questions have their answer on record."""
        with SampleStore(self.folder / OUTPUTS) as store:
            return sum(self._is_answered(question, store) for question in self.loaded.questions)

    def score(
        self, judge: Judge | None, progress: Progress, *, poll: Callable[[], None]
    ) -> Concluded:
        """Give every answer its verdict, by rule where the rule commits itself, else by the judge.

        What the rule made of the same output before is taken over; a verdict of the judge is its
        cache's to remember. The file of scores is replaced whole or not at all, and keeps what was
        concluded of other models, of other sets, or by other judges.
        """
        samples = self._samples()
        progress.start(len(samples), f"{self.benchmark.name}: scoring", done=0)
        with SampleStore(self.folder / SCORES) as store:
            known = store.all()
        by = self.scorings(judge)
        lines: dict[str, Line] = {}
        deferred: list[Sample] = []
        verdicts: dict[int, Verdict] = {}
        for sample in samples:
            key = _score_key(by["rule"], sample.question)
            line = known.get(key)
            if line is None or line["output"] != digest(sample.output):
                scored = by_rule(self.benchmark, sample)
                line = None if scored is None else score_line(sample, scored)
            if line is None:
                deferred.append(sample)
            else:
                lines[key] = line
                progress.advance()
        if judge is not None:
            for place, verdict in judge.judge_all([case_of(each) for each in deferred], poll=poll):
                verdicts[place] = verdict
                progress.advance()
        for place, sample in enumerate(deferred):
            verdict = verdicts.get(place)
            key = _score_key(by["judge"], sample.question)
            lines[key] = score_line(sample, by_judge(sample.question, verdict), verdict)
        others = {key: line for key, line in known.items() if _scoring(key) not in by.values()}
        self._write_scores({**others, **lines})
        for reason, count in _commonest_reasons(verdicts.values()):
            progress.message(
                f"{count:,} of {len(samples):,} answers to {self.benchmark.title} have no verdict: "
                f"{reason}"
            )
        return self._concluded(lines, by)

    def scores(self, judge: Judge | None) -> Concluded:
        """Return what scoring concluded last, if it was about these answers and by this judge."""
        with SampleStore(self.folder / SCORES) as store:
            return self._concluded(store.all(), self.scorings(judge))

    def scorings(self, judge: Judge | None) -> dict[Source, str]:
        """Return what the keys of scores begin with: by rule, and by this judge or none."""
        by_whom = {"rule": "", "judge": "" if judge is None else judge.identity}
        return {
            source: key_of(
                model=self.model,
                benchmark=self.loaded.fingerprint,
                parser=PARSER_VERSION,
                source=source,
                judge=by_whom[source],
            )
            for source in SOURCES
        }

    def _is_answered(self, question: Question, store: SampleStore) -> bool:
        key = self._keys[question.id]
        return key in store and not _output(store[key]).refusal

    def _on_refusals(self, refused: Mapping[str, str], what_follows: str) -> str:
        first, reason = next(iter(refused.items()))
        return (
            f"{len(refused):,} questions of {self.benchmark.title} were refused, {first!r} first: "
            f"{reason} {what_follows} If pictures or prompts are too large for the server, raise "
            "its limits; the same command asks these questions again."
        )

    def _concluded(self, lines: Mapping[str, Line], by: Mapping[Source, str]) -> Concluded:
        found: list[tuple[Question, Line]] = []
        for question in self.loaded.questions:
            keys = [_score_key(by[source], question) for source in SOURCES]
            found += [(question, lines[key]) for key in keys if key in lines][:1]
        if missing := len(self.loaded) - len(found):
            raise BasOpdError(
                f"{missing:,} of {len(self.loaded):,} answers to {self.benchmark.title} "
                f"have no score in {self.folder / SCORES}, or one of another model, set, parser or "
                "judge. Run the same command with --only score first, or without --only."
            )
        return Concluded.of(found)

    def _samples(self) -> list[Sample]:
        with SampleStore(self.folder / OUTPUTS) as store:
            missing = [q.id for q in self.loaded.questions if self._keys[q.id] not in store]
            if missing:
                raise BasOpdError(
                    f"{len(missing):,} of {len(self.loaded):,} questions of {self.benchmark.title} "
                    f"have no answer of this model in {self.folder / OUTPUTS}, {missing[0]!r} "
                    "among them. Run the same command with --only generate first, or without "
                    "--only."
                )
            return [
                Sample(question=question, output=_output(store[self._keys[question.id]]))
                for question in self.loaded.questions
            ]

    def _write_scores(self, lines: Mapping[str, Line]) -> None:
        staging = self.folder / f".{SCORES}.partial"
        staging.unlink(missing_ok=True)
        with SampleStore(staging) as store:
            store.add(lines)
        staging.replace(self.folder / SCORES)


def _score_key(scoring: str, question: Question) -> str:
    return f"{scoring}:{question.id}"


def _scoring(score_key: str) -> str:
    return score_key.partition(":")[0]


def _commonest_reasons(verdicts: Iterable[Verdict]) -> list[tuple[str, int]]:
    """Return why there is no verdict where there is none; a server may find many words for it."""
    return Counter(each.reason for each in verdicts if each.reason).most_common(3)


def _output_line(question: Question, output: Output) -> dict[str, Any]:
    return {
        "id": question.id,
        "output": output.text,
        "is_cut": output.is_cut,
        "note": output.note,
        "refusal": output.refusal,
    }


def _output(line: dict[str, Any]) -> Output:
    return Output(
        text=line["output"],
        is_cut=line["is_cut"],
        note=line["note"],
        refusal=line.get("refusal", ""),  # Answers of an earlier version have none.
    )
