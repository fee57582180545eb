"""What was concluded of each answer: as a line of `scores.jsonl`, and as it counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bas_opd.evaluate.answering import Output
from bas_opd.evaluate.benchmarks import Scored
from bas_opd.evaluate.judge import Verdict
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.scoring import Sample
from bas_opd.evaluate.store import key_of

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """All answers to a benchmark with their verdicts, and what it took to get either."""

    scored: tuple[Scored, ...]
    fallbacks: tuple[str, ...]
    """What had to be left out or renamed for the model to answer."""
    judge_fallbacks: tuple[str, ...]
    """The same for the judge."""

    @classmethod
    def of(cls, lines: Iterable[tuple[Question, Line]]) -> Concluded:
        """Read the lines of a benchmark's questions."""
        pairs = list(lines)
        return cls(
            scored=tuple(_scored(question, line) for question, line in pairs),
            fallbacks=_different(line["fallback"] for _, line in pairs),
            judge_fallbacks=_different(line["judge_fallback"] for _, line in pairs),
        )


def score_line(sample: Sample, scored: Scored, verdict: Verdict | None = None) -> Line:
    """Return one verdict as it is kept."""
    return {
        "id": scored.id,
        "outcome": scored.outcome,
        "source": scored.source,
        "value": scored.value,
        "note": scored.note,
        "reference": sample.question.reference,
        "output": digest(sample.output),
        "fallback": sample.output.note,
        "judge": "" if verdict is None else verdict.text,
        "judge_fallback": "" if verdict is None else "; ".join(verdict.fallbacks),
        "reason": sample.output.refusal if verdict is None else verdict.reason,
    }


def digest(output: Output) -> str:
    """Return what tells this output from any other: a verdict holds for no other."""
    return key_of(text=output.text, is_cut=output.is_cut, refusal=output.refusal)


def _scored(question: Question, line: Line) -> Scored:
    return Scored(
        id=question.id,
        outcome=line["outcome"],
        source=line["source"],
        groups=question.groups,
        value=line["value"],
        note=line["note"],
    )


def _different(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))
