"""An evaluation in three steps, each of which goes on where it stopped: generate, score, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bas_opd.errors import BasOpdError
from bas_opd.evaluate.answering import Answerer, Output
from bas_opd.evaluate.answers import PARSER_VERSION
from bas_opd.evaluate.benchmarks import Benchmark, LoadedSet, Scored
from bas_opd.evaluate.benchmarks.summary import Source
from bas_opd.evaluate.judge import Judge, Verdict
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.scoring import Sample, by_judge, by_rule, case_of
from bas_opd.evaluate.store import SampleStore, key_of

OUTPUTS, SCORES = "outputs.jsonl", "scores.jsonl"
SOURCES: tuple[Source, ...] = ("rule", "judge")


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
        """Ask every question that has no answer yet; each answer is on disk when it counts."""
        with SampleStore(self.folder / OUTPUTS) as store:
            left = [q for q in self.loaded.questions if self._keys[q.id] not in store]
            total = len(self.loaded)
            progress.start(total, f"{self.benchmark.name}: asking", done=total - len(left))
            if not left:
                return
            for place, output in answerer.answers(left):
                question = left[place]
                store.add({self._keys[question.id]: _output_line(question, output)})
                progress.advance()

    def score(self, judge: Judge | None, progress: Progress, *, poll: Callable[[], None]) -> None:
        """Give every answer its verdict, by rule where the rule commits itself, else by the judge.

        Scores by rule are worked out anew each time; a verdict of the judge is its cache's to
        remember. The file of scores is what was concluded this time, whole or not at all.
        """
        samples = self._samples()
        progress.start(len(samples), f"{self.benchmark.name}: scoring", done=0)
        scored: list[Scored | None] = []
        verdicts: dict[int, Verdict] = {}
        for sample in samples:
            scored.append(by_rule(self.benchmark, sample))
            if scored[-1] is not None:
                progress.advance()
        deferred = [place for place, each in enumerate(scored) if each is None]
        if judge is not None:
            cases = [case_of(samples[place]) for place in deferred]
            for number, verdict in judge.judge_all(cases, poll=poll):
                verdicts[deferred[number]] = verdict
                progress.advance()
        final = tuple(
            each or by_judge(samples[place].question, verdicts.get(place))
            for place, each in enumerate(scored)
        )
        self._write_scores(samples, final, verdicts, judge)
        for reason, count in _commonest_reasons(verdicts.values()):
            progress.message(
                f"{count:,} of {len(samples):,} answers to {self.benchmark.title} have no verdict: "
                f"{reason}"
            )

    def scores(self, judge: Judge | None) -> tuple[Scored, ...]:
        """Return what scoring concluded last, if it was about these answers and by this judge."""
        with SampleStore(self.folder / SCORES) as store:
            found = [
                next(
                    (
                        Scored(
                            id=question.id,
                            outcome=store[key]["outcome"],
                            source=source,
                            groups=question.groups,
                            value=store[key]["value"],
                        )
                        for source in SOURCES
                        if (key := self._score_key(question, source, judge)) in store
                    ),
                    None,
                )
                for question in self.loaded.questions
            ]
        scored = tuple(each for each in found if each is not None)
        if len(scored) < len(found):
            raise BasOpdError(
                f"{len(found) - len(scored):,} of {len(found):,} answers to {self.benchmark.title} "
                f"have no score in {self.folder / SCORES}, or one of another model, set, parser or "
                "judge. Run the same command with --only score first, or without --only."
            )
        return scored

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

    def _write_scores(
        self,
        samples: Sequence[Sample],
        scored: Sequence[Scored],
        verdicts: dict[int, Verdict],
        judge: Judge | None,
    ) -> None:
        staging = self.folder / f".{SCORES}.partial"
        staging.unlink(missing_ok=True)
        lines: dict[str, dict[str, Any]] = {}
        for place, (sample, each) in enumerate(zip(samples, scored, strict=True)):
            verdict = verdicts.get(place)
            lines[self._score_key(sample.question, each.source, judge)] = {
                "id": each.id,
                "outcome": each.outcome,
                "source": each.source,
                "value": each.value,
                "reference": sample.question.reference,
                "judge": "" if verdict is None else verdict.text,
                "reason": "" if verdict is None else verdict.reason,
            }
        with SampleStore(staging) as store:
            store.add(lines)
        staging.replace(self.folder / SCORES)

    def _score_key(self, question: Question, source: Source, judge: Judge | None) -> str:
        by_whom = judge.identity if source == "judge" and judge is not None else ""
        return key_of(
            answer=self._keys[question.id], parser=PARSER_VERSION, source=source, judge=by_whom
        )


def _commonest_reasons(verdicts: Iterable[Verdict]) -> list[tuple[str, int]]:
    """Return why there is no verdict where there is none; a server may find many words for it."""
    return Counter(each.reason for each in verdicts if each.reason).most_common(3)


def _output_line(question: Question, output: Output) -> dict[str, Any]:
    return {
        "id": question.id,
        "output": output.text,
        "is_cut": output.is_cut,
        "note": output.note,
    }


def _output(line: dict[str, Any]) -> Output:
    return Output(text=line["output"], is_cut=line["is_cut"], note=line["note"])
