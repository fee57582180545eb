"""Several runs together: who is compared with whom, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_fixtures import evaluate, synthetic_run
from shapes import make_pictures

from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.charts.training import compared_curves, utilities_chart
from bas_opd.report.comparison import compare_runs, findings, headline, run_table
from bas_opd.report.run import Run, read_run

RIGHT, HALF = [True] * 40, [True, True, False, False] * 10


@pytest.fixture
def learned(pictures: PreparedSet, tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "learned", pictures, steps=3)


@pytest.fixture
def full(pictures: PreparedSet, tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "full", pictures, steps=3, policy="full")


def read(*paths: Path) -> list[Run]:
    return [read_run(path) for path in paths]


def test_a_run_is_measured_against_full_querying_on_the_same_task(
    learned: Path, full: Path
) -> None:
    entries = compare_runs(read(learned, full)).entries
    assert [entry.label for entry in entries] == ["learned-25", "full"]
    assert entries[0].full is not None
    assert entries[0].token_share == pytest.approx(
        entries[0].run.totals["scored_tokens"] / entries[1].run.totals["scored_tokens"]
    )
    assert entries[1].full is None
    assert entries[1].token_share == 1.0


def test_full_querying_on_other_data_is_no_measure(learned: Path, tmp_path: Path) -> None:
    other = make_pictures(tmp_path / "other", n=12, seed=9)
    comparison = compare_runs(
        read(learned, synthetic_run(tmp_path / "f", other, steps=3, policy="full"))
    )
    assert comparison.entries[0].full is None
    assert any("on different data" in note for note in comparison.notes)


def test_a_difference_whose_interval_holds_zero_is_called_not_significant(
    learned: Path, full: Path
) -> None:
    evaluate(learned, [*HALF[:-1], True])
    evaluate(full, HALF)
    comparison = compare_runs(read(learned, full))
    (sentence,) = findings(comparison)
    assert "+2.5 points (mean of kinds, 40 questions, " in sentence
    assert "not significantly different" in sentence
    assert not comparison.pairs[0].is_significant
    assert headline(comparison).startswith("learned-25 against full on FineSearch: +2.5 points")


def test_a_gain_and_a_loss_are_called_that(learned: Path, full: Path) -> None:
    evaluate(learned, RIGHT)
    evaluate(full, HALF)
    (gain,) = findings(compare_runs(read(learned, full)))
    assert gain.endswith("a gain for these two runs.")
    evaluate(learned, HALF)
    evaluate(full, RIGHT)
    (loss,) = findings(compare_runs(read(learned, full)))
    assert loss.endswith("a loss for these two runs.")


def test_a_difference_must_outlast_the_adjustment_for_all_pairs(learned: Path, full: Path) -> None:
    """Five of forty: the interval leaves out zero, McNemar's p of 1/16 does not reach 0.05."""
    evaluate(learned, [*[True] * 5, *[False] * 35])
    evaluate(full, [False] * 40)
    comparison = compare_runs(read(learned, full))
    assert not comparison.pairs[0].comparison.difference.holds_zero
    assert comparison.pairs[0].adjusted_p == 0.0625
    assert not comparison.pairs[0].is_significant
    assert findings(comparison)[0].endswith("since the adjusted p is above 0.05.")


def test_equal_answers_are_called_equal(learned: Path, full: Path) -> None:
    evaluate(learned, HALF)
    evaluate(full, HALF)
    (sentence,) = findings(compare_runs(read(learned, full)))
    assert sentence == "learned-25 and full have the same questions of FineSearch right."


def test_answers_to_other_questions_are_never_paired(learned: Path, full: Path) -> None:
    evaluate(learned, RIGHT)
    evaluate(full, RIGHT, questions="others")
    comparison = compare_runs(read(learned, full))
    assert comparison.pairs == ()
    calls = [entry.run.totals["calls"] for entry in comparison.entries]
    assert headline(comparison) == (
        "2 runs, no two of which can be paired on the same questions: "
        f"learned-25 with {calls[0]} teacher calls and full with {calls[1]} teacher calls."
    )


def test_p_is_adjusted_for_the_number_of_pairs(
    learned: Path, full: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    random = synthetic_run(tmp_path / "random", pictures, steps=3, policy="random")
    for path, right in ((learned, RIGHT), (full, HALF), (random, HALF)):
        evaluate(path, right)
    pairs = compare_runs(read(learned, full, random)).pairs
    assert [(pair.a.label, pair.b.label) for pair in pairs] == [
        ("learned-25", "full"),
        ("random-25", "full"),
        ("learned-25", "random-25"),
    ]
    assert pairs[0].adjusted_p == pytest.approx(3 * pairs[0].comparison.p_value)


def test_seeds_of_one_policy_are_summed_up(
    learned: Path, full: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    other = synthetic_run(tmp_path / "learned-1", pictures, steps=3, seed=1)
    evaluate(learned, HALF)
    evaluate(other, RIGHT)
    comparison = compare_runs(read(learned, other, full))
    (group,) = comparison.groups
    assert [entry.label for entry in group.members] == ["learned", "learned-1"]
    assert group.accuracy is not None
    assert group.accuracy.mean == pytest.approx(0.75)
    assert not any("One seed" in note for note in comparison.notes)


def test_the_heading_is_against_full_querying_whatever_was_typed_first(
    learned: Path, full: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    random = synthetic_run(tmp_path / "random", pictures, steps=3, policy="random")
    for path in (learned, full, random):
        evaluate(path, RIGHT if path == full else HALF)
    for order in ((random, learned, full), (full, random, learned)):
        assert headline(compare_runs(read(*order))).startswith("learned-25 against full on")


def test_without_full_querying_the_heading_takes_no_side(
    learned: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    random = synthetic_run(tmp_path / "random", pictures, steps=3, policy="random")
    evaluate(learned, RIGHT)
    evaluate(random, HALF)
    assert headline(compare_runs(read(learned, random))) == (
        "learned-25 reaches 100.0 %, random-25 reaches 50.0 % (mean of kinds); 1 of 1 difference "
        "between them is significant, question by question."
    )


def test_runs_with_different_judges_are_not_paired_and_that_is_said(
    learned: Path, full: Path
) -> None:
    evaluate(learned, RIGHT, judged=3, judge="one")
    evaluate(full, HALF, judged=3, judge="another")
    comparison = compare_runs(read(learned, full))
    assert comparison.pairs == ()
    said = "On FineSearch the runs had different judges (learned-25: one; full: another)"
    assert any(note.startswith(said) for note in comparison.notes)
    evaluate(full, HALF, judged=3, judge="one")
    assert len(compare_runs(read(learned, full)).pairs) == 1


def test_a_judge_who_was_never_asked_changes_nothing(learned: Path, full: Path) -> None:
    evaluate(learned, RIGHT, judge="one")
    evaluate(full, HALF)
    comparison = compare_runs(read(learned, full))
    assert len(comparison.pairs) == 1
    assert not any("judges" in note for note in comparison.notes)


def test_processed_tokens_are_measured_against_full_querying_alone(
    learned: Path, full: Path
) -> None:
    mine, whole = compare_runs(read(learned, full)).entries
    processed = [each.run.totals["processed_tokens"] for each in (mine, whole)]
    assert mine.processed_share == pytest.approx(processed[0] / processed[1])
    assert whole.processed_share == 1.0
    assert compare_runs(read(learned)).entries[0].processed_share is None


def test_full_querying_with_fewer_rollouts_is_measured_against_that_with_most(
    learned: Path, full: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    fewer = synthetic_run(tmp_path / "fewer", pictures, steps=3, policy="full", per_prompt=2)
    mine, whole, few = compare_runs(read(learned, full, fewer)).entries
    assert (mine.full, whole.full, few.full) == (whole.run, None, whole.run)
    assert whole.total_share == 1.0
    tokens = [each.run.totals["total_tokens"] for each in (few, whole)]
    assert few.total_share == pytest.approx(tokens[0] / tokens[1])
    assert (few.total_share or 1) < 1
    alone, same = compare_runs(read(fewer, learned)).entries
    assert (alone.full, same.full) == (None, None)


def test_what_stands_in_the_way_is_said(
    learned: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    short = synthetic_run(tmp_path / "r", pictures, steps=2, planned=9, policy="random")
    notes = " ".join(compare_runs(read(learned, short)).notes)
    for words in (
        "Not evaluated: learned-25, random-25",
        "Not finished: random-25",
        "for different numbers of steps",
        "No run has full querying",
        "One seed of each policy",
    ):
        assert words in notes


def test_a_run_is_not_compared_with_itself(learned: Path) -> None:
    with pytest.raises(DataError, match="given twice"):
        compare_runs(read(learned, learned))


def test_the_number_shown_and_the_difference_are_of_one_accuracy(learned: Path, full: Path) -> None:
    """Three questions in four are of one kind, so that both accuracies differ."""
    kinds = ("count", "count", "count", "colour")
    evaluate(learned, [True, False, False, True] * 10, kinds=kinds)
    evaluate(full, [True, True, False, False] * 10, kinds=kinds)
    comparison = compare_runs(read(learned, full))
    header, first, second = (row[2:5] for row in run_table(comparison))
    assert header == ("mean of kinds", "95 % CI", "all questions")
    assert (first[0], first[2]) == ("66.7 %", "50.0 %")
    assert (second[0], second[2]) == ("33.3 %", "50.0 %")
    (pair,) = comparison.pairs
    assert pair.comparison.difference.mean == pytest.approx(1 / 3)
    assert pair.comparison.beside is not None
    assert pair.comparison.beside.mean == pytest.approx(0.0)


def test_an_evaluation_whose_verdicts_lack_kinds_is_not_paired_and_that_is_said(
    learned: Path, full: Path
) -> None:
    for run in (learned, full):
        evaluate(run, RIGHT)
    scores = learned / "eval" / "finesearch" / "scores.jsonl"
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    for line in lines:
        del line["groups"]
    scores.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    comparison = compare_runs(read(learned, full))
    assert not comparison.pairs
    assert any("learned-25: the verdicts on FineSearch are" in note for note in comparison.notes)


@pytest.mark.parametrize(
    ("policies", "styles"),
    [
        (("learned", "full"), {"ranked", "plain"}),
        (("learned", "full", "learned"), {"part-0", "part-1", "part-2"}),
    ],
)
def test_a_run_looks_alike_in_every_chart_of_a_comparison(
    policies: tuple[str, ...], styles: set[str], pictures: PreparedSet, tmp_path: Path
) -> None:
    paths = [
        synthetic_run(tmp_path / str(number), pictures, steps=3, policy=policy, seed=number)
        for number, policy in enumerate(policies)
    ]
    entries = compare_runs(read(*paths)).entries
    charts = [utilities_chart(entries), *compared_curves(entries)]
    for chart in charts:
        assert chart is not None
        assert {key.style for key in chart.keys} == styles
    assert len(charts) > 2
