"""One benchmark put to one model in three resumable steps: generate, score, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from pathlib import Path

from bas_opd.answers import PARSER_VERSION
from bas_opd.errors import BasOpdError
from bas_opd.evaluate.answering import Answerer
from bas_opd.evaluate.benchmarks import Benchmark, LoadedSet
from bas_opd.evaluate.benchmarks.summary import Source
from bas_opd.evaluate.judge import Judge, Verdict
from bas_opd.evaluate.questions import Output, Question
from bas_opd.evaluate.samples import (
    OUTPUTS,
    SCORES,
    AppendedLines,
    Line,
    digest,
    output_line,
    output_of,
    read_samples,
    score_line,
    scoring_of,
    write_samples,
)
from bas_opd.evaluate.scoring import by_judge, by_rule, case_of
from bas_opd.files import hash_of
from bas_opd.run.progress import Progress
from bas_opd.serving.client import ServerError

MOST_REFUSED_IN_A_ROW = 20
"""So many new refusals in a row mean that the server cannot be asked this way at all."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One benchmark put to one model, in a folder of its own."""

    benchmark: Benchmark
    loaded: LoadedSet
    model: str
    """A hash of the model's weights and decoding."""
    folder: Path

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Question id -> hash of everything that its answer depends on.

        Computed once, because it is much of the time that resuming a finished evaluation takes.
        """
        return {
            question.id: hash_of(
                {
                    "model": self.model,
                    "benchmark": self.loaded.fingerprint,
                    "id": question.id,
                    "prompt": question.prompt,
                }
            )
            for question in self.loaded.questions
        }

    def generate(self, answerer: Answerer, progress: Progress) -> None:
        """Ask every question that has no answer yet; each answer is on disk before it counts.

        A question that a server refuses has no answer, so the next command asks it again.
        """
        samples = read_samples(self.folder / OUTPUTS)
        left = [q for q in self.loaded.questions if not self._is_answered(q, samples)]
        total = len(self.loaded)
        progress.start(total, f"{self.benchmark.name}: asking", done=total - len(left))
        if not left:
            return
        refused: dict[str, str] = {}
        new_in_a_row = 0
        with AppendedLines(self.folder / OUTPUTS) as file:
            for index, output in answerer.answers(left):
                question = left[index]
                key, line = self._keys[question.id], output_line(question, output)
                is_new = key not in samples
                if is_new or samples[key] != line:
                    file.append(key, line)
                progress.advance()
                if not output.refusal:
                    new_in_a_row = 0
                    continue
                refused[question.id] = output.refusal
                new_in_a_row += is_new
                if new_in_a_row >= MOST_REFUSED_IN_A_ROW:
                    raise ServerError(
                        self._on_refusals(refused, "After so many in a row, no more are asked.")
                    )
        if refused:
            progress.message(self._on_refusals(refused, "They count as unscored."))

    def answered(self) -> int:
        """Return how many questions have an answer on disk."""
        samples = read_samples(self.folder / OUTPUTS)
        return sum(self._is_answered(question, samples) for question in self.loaded.questions)

    def score(
        self, judge: Judge | None, progress: Progress, *, poll: Callable[[], None]
    ) -> list[Line]:
        """Score every answer, by rule where the rule can read it, else by the judge.

        The rule's verdict on the same output is reused; verdicts of the judge are kept in its own
        cache. The file of scores is replaced atomically, and keeps the scores of other models,
        other sets and other judges. Returns the scores in the order of the questions.
        """
        outputs = self._outputs()
        progress.start(len(outputs), f"{self.benchmark.name}: scoring")
        known = read_samples(self.folder / SCORES)
        by = self.scorings(judge)
        lines: dict[str, Line] = {}
        deferred: list[tuple[Question, Output]] = []
        verdicts: dict[int, Verdict] = {}
        for question, output in zip(self.loaded.questions, outputs, strict=True):
            key = _score_key(by["rule"], question)
            line = known.get(key)
            if line is None or line["output"] != digest(output) or "groups" not in line:
                scored = by_rule(self.benchmark, question, output)
                line = None if scored is None else score_line(question, output, scored)
            if line is None:
                deferred.append((question, output))
            else:
                lines[key] = line
                progress.advance()
        if judge is not None:
            for index, verdict in judge.judge_all(list(starmap(case_of, deferred)), poll=poll):
                verdicts[index] = verdict
                progress.advance()
        for index, (question, output) in enumerate(deferred):
            verdict = verdicts.get(index)
            key = _score_key(by["judge"], question)
            lines[key] = score_line(question, output, by_judge(question, verdict), verdict)
        others = {key: line for key, line in known.items() if scoring_of(key) not in by.values()}
        write_samples(self.folder / SCORES, {**others, **lines})
        # Only the commonest: a server may word one reason in many ways.
        reasons = Counter(each.reason for each in verdicts.values() if each.reason)
        for reason, count in reasons.most_common(3):
            progress.message(
                f"{count:,} of {len(outputs):,} answers to {self.benchmark.title} have no verdict: "
                f"{reason}"
            )
        return self._collected(lines, by)

    def scores(self, judge: Judge | None) -> list[Line]:
        """Return the scores on disk, if they are of these answers and by this judge."""
        return self._collected(read_samples(self.folder / SCORES), self.scorings(judge))

    def scorings(self, judge: Judge | None) -> dict[Source, str]:
        """Return the prefixes of the keys of scores: by rule, and by this judge or none."""
        judges: dict[Source, str] = {"rule": "", "judge": "" if judge is None else judge.identity}
        return {
            source: hash_of(
                {
                    "model": self.model,
                    "benchmark": self.loaded.fingerprint,
                    "parser": PARSER_VERSION,
                    "source": source,
                    "judge": identity,
                }
            )
            for source, identity in judges.items()
        }

    def _is_answered(self, question: Question, samples: Mapping[str, Line]) -> bool:
        line = samples.get(self._keys[question.id])
        return line is not None and not output_of(line).refusal

    def _on_refusals(self, refused: Mapping[str, str], consequence: str) -> str:
        first, reason = next(iter(refused.items()))
        return (
            f"{len(refused):,} questions of {self.benchmark.title} were refused, {first!r} first: "
            f"{reason} {consequence} If pictures or prompts are too large for the server, raise "
            "its limits; the same command asks these questions again."
        )

    def _collected(self, lines: Mapping[str, Line], by: Mapping[Source, str]) -> list[Line]:
        found: list[Line] = []
        for question in self.loaded.questions:
            keys = [_score_key(scoring, question) for scoring in by.values()]
            found += [lines[key] for key in keys if key in lines][:1]
        if missing := len(self.loaded) - len(found):
            raise BasOpdError(
                f"{missing:,} of {len(self.loaded):,} answers to {self.benchmark.title} "
                f"have no score in {self.folder / SCORES}, or one of another model, set, parser or "
                "judge. Run the same command with --only score first, or without --only."
            )
        return found

    def _outputs(self) -> list[Output]:
        """Return the model's answer to each question."""
        samples = read_samples(self.folder / OUTPUTS)
        missing = [q.id for q in self.loaded.questions if self._keys[q.id] not in samples]
        if missing:
            raise BasOpdError(
                f"{len(missing):,} of {len(self.loaded):,} questions of {self.benchmark.title} "
                f"have no answer of this model in {self.folder / OUTPUTS}, {missing[0]!r} "
                "among them. Run the same command with --only generate first, or without "
                "--only."
            )
        return [output_of(samples[self._keys[each.id]]) for each in self.loaded.questions]


def _score_key(scoring: str, question: Question) -> str:
    return f"{scoring}:{question.id}"
