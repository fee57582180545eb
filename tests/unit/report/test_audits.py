"""What audits come to, on the page and on the card."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_fixtures import card_of, comparison_of, page_of, section, words_of
from report_fixtures import audit, audit_gradients, synthetic_run

from bas_opd.data.records import PreparedSet
from bas_opd.report.charts.audits import audit_figures
from bas_opd.report.run import read_run


@pytest.fixture
def run(pictures: PreparedSet, tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "run", pictures, steps=3)


def test_a_card_has_a_line_for_each_audit_with_who_was_asked(run: Path) -> None:
    audit(run)
    audit(run, source="held-out", teacher="student")
    audit_gradients(run)
    card = card_of(run)
    for name, teacher in (
        ("Utility on training batches", "Teacher: the run's own (ema)."),
        ("Utility on held-out batches", "Teacher = student: the frozen student stood in"),
        ("Gradients", "Teacher: the run's own (ema)."),
    ):
        (line,) = [each for each in card.splitlines() if each.startswith(f"**{name}.**")]
        assert teacher in line
    assert "a budget of 25 % captures: oracle " in card


def test_of_a_run_that_asks_about_everything_a_quarter_is_shown(run: Path) -> None:
    audit(run, ratio="1")
    (figures,) = audit_figures(read_run(run))
    assert "a budget of 25 % captures" in figures.words
    assert not figures.captured["oracle"][0].startswith("100.0 %")


def test_a_run_with_another_budget_has_its_own_shown(run: Path) -> None:
    audit(run, ratio="0.5")
    (figures,) = audit_figures(read_run(run))
    assert figures.budget == "50 %"
    assert figures.captured["random"] == ("50.0 %", "")


def test_an_audit_without_any_utility_says_so(run: Path) -> None:
    audit(run, worth=0.0)
    words = words_of(section(page_of(run), "audit"))
    assert "None of the 96 candidates of the audit has any utility" in words
    assert "No utility audit is on record" not in words
    assert "By kind of question" not in words
    assert "has any utility" in card_of(run)


def test_an_audit_of_one_batch_is_shown_without_intervals(run: Path, tmp_path: Path) -> None:
    audit(run, batches=1)
    audit_gradients(run, batches=1)
    page = page_of(run)
    words = words_of(section(page, "audit"))
    assert "16 candidates of 1 training batch, all scored at step 6" in words
    assert "one batch gives no confidence intervals" in words
    assert "At 6 checkpoints, 1 batch each" in words
    for text in (page, card_of(run), *comparison_of(tmp_path / "out", run, _other(run))):
        assert "1 batches" not in text
        assert not re.search(r"\b(inf|nan)\b", text)


def _other(run: Path) -> Path:
    """A run of the same data that was not audited."""
    data = PreparedSet.load(Path(read_run(run).started.data.folder))
    return synthetic_run(run.with_name("other"), data, steps=3, policy="random")


def test_a_comparison_shows_what_each_audit_captured(run: Path, tmp_path: Path) -> None:
    audit(run, teacher="student")
    page, card = comparison_of(tmp_path / "out", run, _other(run))
    words = words_of(section(page, "audit"))
    assert "96 candidates of 6 training batches, all scored at step 6; Teacher = student." in words
    assert "learned-25, training batches: Mean utility by predicted rank" in words
    assert section(page, "audit").count('<svg class="chart"') == 2
    assert "learned-25: Utility on training batches." in card
