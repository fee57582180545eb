"""The cost of runs in the layout of the paper's Tables 7 and 8, with the paper's own rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bas_opd.report.run import Run
from bas_opd.run.record import STUDENT_PASSES
from bas_opd.text import percent

ODDITIES = (
    "The paper's rows are of Qwen3.5-4B over 111 steps on its authors' machines; it calls the "
    "times secondary, since code path, device use and scheduling were not held equal across runs.",
    "Its tokens are relative to another run, that with full querying; where there is none to "
    "compare with, ours are relative to the candidates of the same run.",
    "A quarter of the calls saved the paper 16 % of the teacher's time: in the released base code "
    "the teacher runs inside every student micro-batch; here it is a phase of its own.",
    "The accuracies that the paper sets beside these costs are not quoted: two of Random-25 "
    "(V*Bench 86.43, ZoomBench 56.51) are no whole number of right answers out of 191 and 845.",
)
"""Notes on the quoted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """A table of costs: our rows, and those quoted from the paper."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    quoted: tuple[tuple[str, ...], ...] = ()


def supervision_table(runs: dict[str, Run], full: dict[str, Run] | None = None) -> CostTable:
    """Return calls and scored tokens of each run (Table 7); `full` holds the reference of each.

    A run without a full-query reference is compared with its own candidates.
    """
    header = ("candidates", "teacher calls", "query ratio", "scored tokens", "tokens vs. full")
    return CostTable(
        header=("policy", *header, "max overrun"),
        rows=[_supervision(label, run, (full or {}).get(label)) for label, run in runs.items()],
        quoted=(
            # Table 7 of the paper: quoted, not measured here.
            ("Full querying", "24,864", "24,864", "100.00 %", "2,167,850", "100.00 %", "0"),
            ("Random-25", "24,864", "6,216", "25.00 %", "569,674", "26.28 %", "0"),
            ("Entropy-25", "24,864", "6,216", "25.00 %", "599,321", "27.65 %", "0"),
            ("Learned-25", "24,864", "6,216", "25.00 %", "342,089", "15.78 %", "0"),
        ),
    )


def time_table(runs: dict[str, Run]) -> CostTable:
    """Return the seconds of each run (Table 8)."""
    return CostTable(
        header=("policy", "teacher sum", "teacher / step", "mean step", "total step time"),
        rows=[_time(label, run) for label, run in runs.items()],
        quoted=(
            # Table 8 of the paper: quoted, not measured here.
            ("Full querying", "5,174.38 s", "46.62 s", "499.88 s", "55,487.15 s"),
            ("Random-25", "4,705.55 s", "42.39 s", "468.95 s", "52,053.55 s"),
            ("Entropy-25", "4,690.39 s", "42.26 s", "469.30 s", "52,092.85 s"),
            ("Learned-25", "4,345.38 s", "39.15 s", "450.70 s", "50,027.87 s"),
        ),
    )


def token_parts(run: Run) -> list[tuple[str, str, str, str]]:
    """Return who processed tokens, how many, what they count and their share of the total."""
    sums = run.totals
    sampler = "the teacher" if run.method == "sft" else "the sampler"
    parts = {
        f"prompts of {sampler}": (sums["prefilled_tokens"], 1),
        f"responses of {sampler}": (sums["sampled_tokens"], 1),
        "the teacher, prompts included": (sums["processed_tokens"], 1),
        "the initial model, for the KL": (sum(each.reference_tokens for each in run.rewarded), 1),
        "the student before its updates": (_rescored_tokens(run), 1),
        "the student, forward and backward": (sums["student_tokens"], STUDENT_PASSES),
    }
    everything = (sum(tokens for tokens, _ in parts.values()), sums["total_tokens"])
    counted = {name: (tokens, times * tokens) for name, (tokens, times) in parts.items() if tokens}
    return [
        (name, f"{tokens:,}", f"{counts:,}", percent(counts, sums["total_tokens"]))
        for name, (tokens, counts) in (*counted.items(), ("total", everything))
    ]


def _rescored_tokens(run: Run) -> int:
    """Return what the student computed without a gradient on rows that it then learned from."""
    return sum(each.rescored_tokens for each in (*run.rewarded, *run.queries))


def token_table(runs: dict[str, Run], full: dict[str, Run]) -> CostTable:
    """Return all tokens that sampler, teacher, reference and student processed, with prompts.

    A run without a full-query reference has no share: it never counted unselected prompts.
    """
    header = ("prefilled", "sampled", "scored", "processed", "processed vs. full", "student")
    again = any(run.rewarded for run in runs.values())
    wholes = {label: run.totals for label, run in full.items()}
    return CostTable(
        header=("policy", *header, *(("reference",) if again else ()), "total", "total vs. full"),
        rows=[
            (
                label,
                f"{sums['prefilled_tokens']:,}",
                f"{sums['sampled_tokens']:,}",
                *_teacher_tokens(run, whole),
                f"{sums['student_tokens']:,}",
                *((_reference_tokens(run),) if again else ()),
                f"{sums['total_tokens']:,}",
                percent(sums["total_tokens"], whole.get("total_tokens", 0), 2),
            )
            for label, run in runs.items()
            for sums, whole in [(run.totals, wholes.get(label, {}))]
        ],
    )


def _teacher_tokens(run: Run, whole: Mapping[str, int]) -> tuple[str, str, str]:
    if not run.has_queries:
        return "-", "-", "-"
    scored, processed = run.totals["scored_tokens"], run.totals["processed_tokens"]
    return f"{scored:,}", f"{processed:,}", percent(processed, whole.get("processed_tokens", 0), 2)


def _reference_tokens(run: Run) -> str:
    return f"{sum(step.teacher_tokens for step in run.rewarded):,}" if run.rewarded else "-"


def _supervision(label: str, run: Run, full: Run | None) -> tuple[str, ...]:
    sums = run.totals
    whole = sums["candidate_tokens"] if full is None else full.totals["scored_tokens"]
    return (
        label,
        f"{sums['candidates']:,}",
        f"{sums['calls']:,}",
        percent(sums["calls"], sums["candidates"], 2),
        f"{sums['scored_tokens']:,}",
        percent(sums["scored_tokens"], whole, 2),
        f"{sums['overrun']:,}",
    )


def _time(label: str, run: Run) -> tuple[str, ...]:
    steps = len(run.steps) or 1
    teacher = run.totals["seconds"].get("teacher", 0.0) if run.has_teacher else None
    values = (teacher, teacher and teacher / steps, run.seconds / steps, run.seconds)
    return (label, *("-" if value is None else f"{value:,.2f} s" for value in values))
