"""What a page and a card say of a run, and what they never do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_fixtures import comparison_of, page_of, section, words_of
from report_fixtures import audit, audit_gradients, evaluate, synthetic_run
from run_fixtures import events_of, rewrite, small_run
from shapes import make_pictures

from bas_opd.data.records import PreparedSet
from bas_opd.report.pages.examples import WANTED, shown_examples, training_set
from bas_opd.report.pages.writing import write_comparison, write_report
from bas_opd.report.run import read_run

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>\x1b[2J\u202e'


@pytest.fixture
def run(pictures: PreparedSet, tmp_path: Path) -> Path:
    return synthetic_run(tmp_path / "run", pictures, steps=5)


def test_the_first_words_are_the_result_with_its_interval(run: Path) -> None:
    evaluate(run, [True, False] * 20)
    page = page_of(run)
    heading = re.findall(r"<h1>(.*?)</h1>", page, re.DOTALL)
    assert len(heading) == 1
    assert words_of(heading[0]).startswith("learned-25 reaches 50.0 % (mean of kinds, 95 % CI ")
    assert "FineSearch after 5 steps" in heading[0]


def test_a_run_without_evaluation_says_what_it_did(run: Path) -> None:
    words = words_of(page_of(run))
    assert "learned-25 trained for 5 steps" in words
    assert "the model was not evaluated" in words
    assert "No evaluation; bas-opd eval RUN --bench NAME --data FOLDER makes one." in words


def test_every_total_on_the_page_is_that_of_the_records(run: Path) -> None:
    sums = events_of(run)[-1]["totals"]
    words = words_of(page_of(run))
    for name in ("calls", "scored_tokens", "candidates", "candidate_tokens", "processed_tokens"):
        assert f"{sums[name]:,}" in words
    assert "Overrun 0: none of the 5 steps" in words
    assert "9 checks of the records hold" in words


def test_the_page_asks_nothing_of_the_network_and_is_small(run: Path) -> None:
    page = page_of(run)
    assert not re.search(r"https?:|//|<script|@import|url\(", re.sub(r"data:[^\"]*", "", page))
    assert "default-src 'none'" in page
    assert len(page) < 3e6


def test_hostile_text_is_inert(pictures: PreparedSet, tmp_path: Path) -> None:
    texts = {"question": HOSTILE, "answer": HOSTILE, "response": HOSTILE}
    run = synthetic_run(tmp_path / "<script>run", pictures, steps=4, texts=texts)
    written = write_report(run, tmp_path / "out")
    for path in (written.page, written.card):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<!\\)<(script|img src=x)", text)
        assert not {"\x1b", "\u202e"} & set(text)
    words = words_of(written.page.read_text(encoding="utf-8"))
    assert '<script>document.title="owned"</script>' in words
    assert r"\x1b[2J\u202e" in words


def test_records_that_do_not_check_out_are_said_to(run: Path) -> None:
    events = events_of(run)
    events[2]["budget"] += 5
    rewrite(run, events)
    words = words_of(page_of(run))
    assert "1 of 9 checks of the records fail" in words
    assert "step 1: budget is" in words
    assert "nothing on this page is certain" in words
    assert "do not hold: budget" in (run / "card.md").read_text()


def test_a_run_over_budget_is_not_said_to_have_kept_it(run: Path) -> None:
    events = events_of(run)
    events[2]["budget"] -= 1
    events[2]["overrun"] = 1
    rewrite(run, events)
    words = words_of(page_of(run))
    assert "The budget was exceeded" in words
    assert "1 of 5 steps asked the teacher more than K allowed; the worst by 1 call." in words


def test_a_page_says_what_a_budget_in_tokens_counts(small_qwen35: Path, tmp_path: Path) -> None:
    settings = ("select.policy=covering", "select.budget=scored_tokens", "run.steps=2")
    words = words_of(page_of(small_run(tmp_path, small_qwen35, *settings)))
    assert "covering-25 of scored tokens" in words
    assert "K = floor(0.25 x scored tokens of full querying), at most" in words
    assert "Random draws and predictions were not recomputed" in words
    assert "The covering policy ranked no row" in words


def test_an_unfinished_run_is_called_that(pictures: PreparedSet, tmp_path: Path) -> None:
    words = words_of(page_of(synthetic_run(tmp_path / "run", pictures, steps=2, planned=7)))
    assert "not finished" in words
    assert "2 of 7 steps are on record" in words


def test_a_run_that_has_only_begun_has_a_page(pictures: PreparedSet, tmp_path: Path) -> None:
    words = words_of(page_of(synthetic_run(tmp_path / "run", pictures, steps=0, planned=7)))
    assert "No step is on record yet" in words


def test_a_run_that_asks_about_everything_is_said_to(pictures: PreparedSet, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", pictures, steps=3, policy="full")
    page = section(page_of(run), "selection")
    words = words_of(page)
    assert "as every candidate (mean utility" in words
    assert "Nothing was selected" in words
    assert "random" not in words
    assert "not asked" not in words
    assert "point explored" not in page
    drawn = synthetic_run(tmp_path / "drawn", pictures, steps=3, policy="random")
    words = words_of(section(page_of(drawn), "selection"))
    assert "asked, drawn at random" in words
    assert "every candidate" not in words
    assert "by score not asked" not in words


@pytest.mark.parametrize(("ratio", "upper"), [("0.25", "22.5"), ("0.5", "45")])
def test_bands_are_described_by_the_budget_of_the_run(
    ratio: str, upper: str, pictures: PreparedSet, tmp_path: Path
) -> None:
    run = synthetic_run(tmp_path / "run", pictures, steps=8, prompts=12, ratio=ratio)
    words = words_of(section(page_of(run), "selection"))
    assert f"The teacher was asked about the upper {upper} % of each step" in words
    assert "top quarter" not in words


def test_the_interval_of_a_mean_is_not_called_wilsons(run: Path) -> None:
    evaluate(run, [True, False] * 20)
    words = words_of(section(page_of(run), "evaluation"))
    assert "Wilson's for a share, and combined from those of the parts for a mean" in words
    assert "Intervals are Wilson's" not in words


@pytest.mark.parametrize("policy", ["full", "random"])
def test_every_policy_has_a_page(policy: str, pictures: PreparedSet, tmp_path: Path) -> None:
    page = page_of(synthetic_run(tmp_path / "run", pictures, steps=3, policy=policy))
    assert policy in re.findall(r"<h1>(.*?)</h1>", page, re.DOTALL)[0]


def test_a_student_who_stood_in_for_the_teacher_is_named_on_every_figure(run: Path) -> None:
    audit(run, teacher="student")
    audit_gradients(run, teacher="student")
    figures = re.findall(r"<figure>.*?</figure>", section(page_of(run), "audit"), re.DOTALL)
    assert len(figures) == 6
    assert all("Teacher = student." in words_of(figure) for figure in figures)
    spoken = [label for figure in figures for label in re.findall('aria-label="(.*?)"', figure)]
    assert len(spoken) == 5
    assert all("Teacher = student: the frozen student stood in" in label for label in spoken)
    audit(run, teacher="own")
    audit_gradients(run, teacher="own")
    assert "Teacher = student" not in page_of(run)


def test_the_papers_costs_are_not_set_beside_those_of_a_run_of_another_size(
    run: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    full = synthetic_run(tmp_path / "full", pictures, steps=5, policy="full")
    for page in (page_of(run), comparison_of(tmp_path / "out", run, full)[0]):
        assert "342,089" not in page
        assert "(paper)" not in page


def test_examples_show_picture_box_and_both_utilities(run: Path) -> None:
    page = page_of(run)
    articles = re.findall(r"<article>.*?</article>", page, re.DOTALL)
    assert len(articles) == len({row.example for _, row in read_run(run).shown})
    for article in articles:
        assert article.count("data:image/jpeg;base64,") == 2
        assert 'class="box"' in article
        assert " observed" in article
    assert any("(predicted utility)" in article for article in articles)


@pytest.mark.parametrize(
    ("policy", "score"),
    [
        ("regressed", "square root of predicted utility"),
        ("covering", "predicted utility x tokens"),
    ],
)
def test_a_score_is_shown_as_what_it_is(
    policy: str, score: str, pictures: PreparedSet, tmp_path: Path
) -> None:
    page = page_of(synthetic_run(tmp_path / "run", pictures, steps=4, policy=policy))
    assert re.search(rf"<dt>score</dt><dd>[-\d.e+]+ \({score}\)</dd>", page)
    assert re.search(rf"; score [-\d.e+]+ \({score}\)", page)
    assert "predicted utility 0" not in page


def test_a_missing_picture_is_said_and_is_no_error(pictures: PreparedSet, tmp_path: Path) -> None:
    data = make_pictures(tmp_path / "data", n=24, seed=3)
    run = synthetic_run(tmp_path / "run", data, steps=3)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    words = words_of(page_of(run))
    assert "The picture is not shown" in words
    assert "Kinds of question are not shown" in words


def test_pictures_of_another_set_in_its_place_are_not_shown(tmp_path: Path) -> None:
    data = make_pictures(tmp_path / "data", n=24, seed=3)
    run = read_run(synthetic_run(tmp_path / "run", data, steps=3))
    assert training_set(run)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    make_pictures(tmp_path / "data", n=24, seed=4)
    assert training_set(run) == {}


def test_examples_reach_from_the_most_useful_to_the_least(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=12, shown=9))
    shown = shown_examples(run, training_set(run))
    values = [each.row.utility for each in shown]
    assert len(shown) == WANTED
    assert values == sorted(values, key=lambda value: -(value or 0))
    assert len({each.row.example for each in shown}) == WANTED
    assert len({each.kind for each in shown}) > 1


def test_no_place_on_a_disk_is_given_away(run: Path) -> None:
    for text in (page_of(run), (run / "card.md").read_text()):
        assert str(run.parent) not in text


def test_the_page_of_several_runs_has_their_differences(
    run: Path, pictures: PreparedSet, tmp_path: Path
) -> None:
    full = synthetic_run(tmp_path / "full", pictures, steps=5, policy="full")
    evaluate(run, [True] * 30)
    evaluate(full, [True, False] * 15)
    written = write_comparison([run, full], tmp_path / "out")
    page = written.page.read_text(encoding="utf-8")
    assert "+50.0 points (mean of kinds, 30 questions, " in written.sentence
    assert written.sentence in words_of(page)
    for place in ("runs", "differences", "budget", "time", "cost", "environment", "not-run"):
        assert f'<section id="{place}">' in page
    evaluation = words_of(section(page, "evaluation"))
    assert "learned-25 FineSearch, mean of kinds 100.0 % " in evaluation
    assert "full FineSearch, mean of kinds 50.0 % " in evaluation
    processed = [read_run(each).totals["processed_tokens"] for each in (run, full)]
    share = f"{processed[0]:,} {100 * processed[0] / processed[1]:.1f} % of full"
    assert share in words_of(section(page, "runs"))
    assert f"{100 * processed[0] / processed[1]:.2f} %" in words_of(section(page, "cost"))
    assert "select.policy" in words_of(page)
    assert "| 1 learned-25 | 5 | 100.0 % |" in written.card.read_text()
    assert "| full | FineSearch | mean of kinds | 50.0 % |" in written.card.read_text()
