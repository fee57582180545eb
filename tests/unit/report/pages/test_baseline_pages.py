"""Pages and cards of methods other than BAS-OPD: what their users look for, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from page_fixtures import card_of, comparison_of, page_of, section, words_of
from report_fixtures import evaluate, synthetic_run

from bas_opd.data.records import PreparedSet
from bas_opd.report.comparison import compare_runs, cost_sentence, entry_tiles, headline, run_table
from bas_opd.report.costs import token_parts
from bas_opd.report.pages.comparison_text import comparison_text
from bas_opd.report.run import read_run

METHODS = ("grpo", "dapo", "sft", "opsd")
FULL_AND_BASELINES = ("full", "grpo", "dapo", "sft", "opsd")


@pytest.fixture
def make(pictures: PreparedSet, tmp_path: Path) -> Any:
    def made(method: str, name: str = "", **changes: Any) -> Path:
        settings: dict[str, Any] = {"steps": 8, **changes}
        if method == "full":
            return synthetic_run(tmp_path / "full", pictures, policy="full", **settings)
        return synthetic_run(tmp_path / (name or method), pictures, method=method, **settings)

    return made


def titles(page: str, place: str) -> list[str]:
    return re.findall(r"<h3>(.*?)</h3>", section(page, place))


def test_a_page_draws_the_curves_of_its_method(make: Any) -> None:
    curves = {method: titles(page_of(make(method)), "training") for method in METHODS}
    common = ["Gradient norm", "Length of responses"]
    assert curves["opsd"] == ["Loss", *common]
    assert curves["sft"] == ["Responses that are right", "Loss", *common]
    assert curves["grpo"] == [
        "Mean reward",
        "KL to the initial model",
        "Gradient norm",
        "Entropy of the policy",
        "Length of responses",
    ]
    assert set(curves["dapo"]) == {
        "Mean reward",
        "Gradient norm",
        "Tokens that were clipped",
        "Prompts kept",
        "Rounds of sampling",
        "Entropy of the policy",
        "Length of responses",
    }


def test_what_never_happened_is_said_and_not_drawn(make: Any) -> None:
    words = words_of(section(page_of(make("grpo")), "training"))
    assert "Every response could be read by rule." in words


def test_a_reward_with_a_penalty_is_drawn_beside_what_is_right(make: Any) -> None:
    run = make("dapo", settings={"rollout": {"prompts_per_step": 6, "per_prompt": 4}})
    assert "Responses that are right" not in titles(page_of(run), "training")
    short = {"rollout": {"prompts_per_step": 6, "per_prompt": 4, "max_response_tokens": 40}}
    page = page_of(make("dapo", "short", settings=short))
    assert titles(page, "training")[:2] == ["Mean reward", "Responses that are right"]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_without_selection_has_no_section_on_it(method: str, make: Any) -> None:
    page = page_of(make(method))
    for place in ("budget", "selection", "audit"):
        assert f'id="{place}"' not in page
        assert f'href="#{place}"' not in page
    words = words_of(page)
    for absent in ("queries no teacher", "selector", "Nothing was selected", "audit RUN"):
        assert absent not in words
    assert "checks of the records hold" in words
    assert 'id="checks"' in page


@pytest.mark.parametrize("method", ["grpo", "dapo"])
def test_without_a_teacher_no_time_or_token_is_said_to_be_its(method: str, make: Any) -> None:
    run = make(method)
    assert "teacher" not in words_of(page_of(run)).partition("Environment and settings")[0]
    assert "teacher" not in card_of(run)


def test_the_tokens_add_up_with_those_of_the_reference(make: Any) -> None:
    several = {"grpo": {"beta": 0.04, "updates_per_step": 2}}
    for path in (make("grpo", settings=several), *(make(m) for m in ("dapo", "sft", "opsd"))):
        run = read_run(path)
        *parts, total = token_parts(run)
        counts = [int(row[2].replace(",", "")) for row in parts]
        assert sum(counts) == int(total[2].replace(",", "")) == run.totals["total_tokens"]
        for row in (*parts, total):
            assert all(cell in words_of(section(page_of(path), "cost")) for cell in row)
        if run.method == "grpo":
            reference = sum(step.reference_tokens for step in run.rewarded)
            assert f"the initial model, for the KL {reference:,} " in words_of(page_of(path))
            rescored = sum(step.rescored_tokens for step in run.rewarded)
            assert f"the student before its updates {rescored:,} " in words_of(page_of(path))


def test_rewards_are_in_the_first_words_and_in_a_tile(make: Any) -> None:
    path = make("grpo")
    means = [fmean(step.rewards) for step in read_run(path).rewarded]
    first, last = fmean(means[:2]), fmean(means[-2:])
    words = words_of(page_of(path))
    assert (
        f"grpo trained for 8 steps on 192 graded rollouts, whose mean reward went from {first:.2f} "
        f"in the first 2 steps to {last:.2f} in the last 2; the model was not evaluated."
    ) in words
    assert f"mean reward {last:.2f} in the last 2 steps; {first:.2f} in the first" in words
    assert "192 graded, all readable by rule; 8 optimizer updates" in words


@pytest.mark.parametrize(("keep", "says"), [("right", "right and learned from"), ("all", "all of")])
def test_the_card_of_sft_agrees_with_itself(keep: str, says: str, make: Any) -> None:
    run = make("sft", settings={"sft": {"keep": keep}})
    learned = sum(len(step.rows or ()) for step in read_run(run).steps)
    made = read_run(run).totals["generated"]
    card = card_of(run)
    assert f"on {learned:,} of {made:,} responses of the initial model to the crop" in card
    assert says in card
    assert "no teacher" not in card
    assert "Budget" not in card
    assert "All 8 checks of the records hold." in card


def test_rollouts_are_shown_with_grade_reward_and_advantage(make: Any) -> None:
    run = make("grpo", shown=4)
    articles = re.findall(r"<article>.*?</article>", page_of(run), re.DOTALL)
    assert len(articles) == 6
    shown = {
        (row.response, step.rewards[row.row], step.advantages[row.row])
        for step in read_run(run).rewarded
        for row in step.shown
    }
    for article in articles:
        assert article.count("data:image/jpeg;base64,") == 1  # nobody sees the crop
        assert 'class="box"' not in article
        words = words_of(article)
        assert words.count("advantage") == 4
        found = re.findall(r"reward (\S+), advantage (\S+) ", words)
        expected = {(f"{r:.2f}", f"{a:+.2f}" if a else "0") for _, r, a in shown}
        assert set(found) <= expected
    assert any('mark right">right' in a and 'mark wrong">wrong' in a for a in articles)


def test_what_sft_learned_from_is_shown_with_the_crop(make: Any) -> None:
    articles = re.findall(r"<article>.*?</article>", page_of(make("sft", shown=4)), re.DOTALL)
    assert articles
    for article in articles:
        assert article.count("data:image/jpeg;base64,") == 2
        assert "learned from" in article


def test_a_teacher_that_is_told_the_answer_is_not_said_to_see_the_crop(make: Any) -> None:
    page = page_of(make("opsd"))
    assert "scored by a teacher that is told the answer" in words_of(page)
    assert "the crop, teacher only" not in page
    assert page.count("<article>") > 0


def test_the_headline_of_a_comparison_says_what_each_method_did(make: Any) -> None:
    runs = [make(method) for method in FULL_AND_BASELINES]
    comparison = compare_runs([read_run(run) for run in runs[1:]])
    totals = [entry.run.totals for entry in comparison.entries]
    assert headline(comparison) == (
        "4 runs, no two of which can be paired on the same questions: grpo with "
        f"{totals[0]['rollouts']:,} graded rollouts, dapo with {totals[1]['rollouts']:,} graded "
        f"rollouts, sft with {totals[2]['generated']:,} responses of the teacher and opsd with "
        f"{totals[3]['calls']:,} teacher calls."
    )
    assert [name for name, _, _ in entry_tiles(comparison)] == [
        "grpo, graded rollouts",
        "dapo, graded rollouts",
        "sft, responses of the teacher",
        "opsd, teacher calls",
    ]


def test_the_cost_of_a_method_without_queries_is_its_total(make: Any) -> None:
    comparison = compare_runs([read_run(make("grpo")), read_run(make("full"))])
    assert re.fullmatch(
        r"grpo took \d+\.\d % of the total tokens of full querying\.", cost_sentence(comparison)
    )
    header, mine, _ = run_table(comparison)
    row = dict(zip(header, mine, strict=True))
    assert row["calls"] == row["scored tokens"] == row["processed tokens"] == "-"


def test_a_comparison_of_methods_has_their_curves_and_no_empty_parts(
    make: Any, tmp_path: Path
) -> None:
    runs = [make(method) for method in METHODS]
    for run in runs:
        evaluate(run, [True, False] * 20)
    page, card = comparison_of(tmp_path / "out", *runs)
    drawn = titles(page, "runs")
    assert {"Mean reward", "Gradient norm", "Length of responses"} <= set(drawn)
    assert "Utility of the teacher's replies" not in drawn
    assert 'id="audit"' not in page
    assert 'id="budget"' not in page
    assert "reference" in words_of(section(page, "cost"))
    assert "0 times" not in page + card
    assert "Accuracy and cost" in drawn
    assert "total tokens vs. most" in page


def test_seeds_of_a_method_without_queries_have_no_tokens_of_a_teacher(
    make: Any, tmp_path: Path
) -> None:
    runs = [make("grpo", f"grpo{seed}", seed=seed) for seed in range(2)]
    for run in runs:
        evaluate(run, [True, False] * 20)
    page, _ = comparison_of(tmp_path / "out", *runs)
    text = comparison_text(compare_runs([read_run(run) for run in runs]))
    assert re.search(
        r"grpo over 2 seeds: 50.0 % \(mean of kinds\), [\d,]+ ± [\d,]+ total tokens\.", text
    )
    assert "full querying" not in text
    assert re.search(r"grpo 2 mean of kinds 50.0 - - [\d,]+ ±", words_of(page))


def test_several_methods_are_named_by_what_they_reached(make: Any, tmp_path: Path) -> None:
    runs = [make(method) for method in FULL_AND_BASELINES]
    for number, run in enumerate(runs):
        evaluate(run, [True] * (20 + number) + [False] * (20 - number))
    few = compare_runs([read_run(run) for run in runs[:3]])
    assert headline(few).startswith("full reaches 50.0 %, grpo reaches 52.5 %, dapo reaches 55.0 %")
    assert cost_sentence(few) == ""
    every = compare_runs([read_run(run) for run in runs])
    assert headline(every).startswith(
        "Of 5 runs, full reaches least, 50.0 %, and opsd most, 60.0 % (mean of kinds); "
    )
    page, _ = comparison_of(tmp_path / "out", *runs)
    assert "total tokens vs. full" in page
    assert "scored tokens vs. full" not in page
