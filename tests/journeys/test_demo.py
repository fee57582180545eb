"""The demo as typed, on fewer pictures and steps than a user gets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from run_fixtures import events_of
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.commands import demo
from bas_opd.data.records import PreparedSet
from bas_opd.evaluate.answering import LocalAnswerer, ModelAnswers
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.model.loading import open_model
from bas_opd.report.demo import (
    CROPS,
    GROUPS,
    LABELS,
    Answer,
    DemoResults,
    change,
    read_demo,
    table,
    write_page,
)
from bas_opd.report.findings import value_text
from bas_opd.report.run import read_run
from bas_opd.run.verify import verify

QUESTIONS = 9
SMALL = (
    "run.steps=2",
    "rollout.prompts_per_step=3",
    "rollout.per_prompt=4",
    "select.replay_start=1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A finished demo: its folder and its output."""

    home: Path
    output: str

    @property
    def results(self) -> DemoResults:
        return read_demo(self.home)


def run(folder: Path, seed: int) -> Demo:
    small = partial(demo.run_demo, questions=QUESTIONS, overrides=SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_demo", small)
        result = CliRunner().invoke(app, ["demo", "--folder", str(folder), "--seed", str(seed)])
    assert result.exit_code == 0, result.output
    return Demo(home=folder / "demo-1", output=result.output)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return run(tmp_path_factory.mktemp("runs"), seed=0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return run(tmp_path_factory.mktemp("runs"), seed=1)


def cells(results: DemoResults) -> dict[str, tuple[str, ...]]:
    return {row[0].strip(): row[1:] for row in table(results)}


def summed(home: Path, run: str, name: str) -> int:
    return sum(event[name] for event in events_of(home / run) if event["event"] == "step")


def seconds(event: Mapping[str, Any], *phases: str) -> float:
    return sum(value for phase, value in event["seconds"].items() if phase in phases or not phases)


def test_the_costs_of_the_table_are_the_sums_of_the_records(first: Demo) -> None:
    rows = cells(first.results)
    for label, name in (
        ("teacher calls", "calls"),
        ("tokens the teacher scored", "scored_tokens"),
        ("tokens it processed", "processed_tokens"),
        ("total tokens, student's x 3", "total_tokens"),
    ):
        learned, full = (summed(first.home, run, name) for run in ("learned25", "full"))
        assert rows[label] == ("-", f"{learned:,} ({100 * learned / full:.1f} %)", f"{full:,}")
    for place, run in ((1, "learned25"), (2, "full")):
        steps = [event for event in events_of(first.home / run) if event["event"] == "step"]
        teacher = sum(seconds(step, "teacher") for step in steps)
        assert rows["seconds of the teacher"][place] == f"{teacher:.1f}"
        assert rows["seconds of training"][place] == f"{sum(map(seconds, steps)):.1f}"
        assert rows["steps"][place] == str(len(steps)) == "2"
        assert verify(first.home / run).is_sound


def test_the_accuracies_of_the_table_are_those_of_the_models_it_left(first: Demo) -> None:
    finesearch = benchmark("finesearch")
    questions = finesearch.load(first.home / "data" / "test").questions
    reached = []
    for run in ("base", "learned25", "full"):
        folder = demo.small_base() if run == "base" else first.home / run / "model"
        model = open_model(folder, device="cpu")
        answering = ModelAnswers(model=model, max_response_tokens=24, prompts_per_batch=256)
        scored = score_in_memory(finesearch, questions, answering.answers(questions))
        reached.append(finesearch.summarise(scored))
    rows = cells(first.results)
    assert rows["accuracy, mean of kinds"] == tuple(
        f"{100 * (each.primary.value or 0):.1f} %" for each in reached
    )
    right = [each.beside.correct or 0 for each in reached if each.beside]
    assert rows["accuracy, all questions"] == tuple(
        f"{100 * count / QUESTIONS:.1f} % ({count})" for count in right
    )


def test_a_model_has_the_same_named_accuracy_on_every_page_and_console(first: Demo) -> None:
    """One kind of the demo has twice the questions of the others, so both accuracies differ."""
    learned, full = (str(first.home / run) for run in ("learned25", "full"))
    summary = first.results.evaluated["learned25"].summary
    assert summary.primary.name == "mean of kinds"
    assert summary.beside is not None
    mean, every = value_text(summary.primary), value_text(summary.beside)
    assert f"learned-25: accuracy {mean} (mean of kinds), {every} (all questions)." in first.output
    assert cells(first.results)["accuracy, mean of kinds"][1] == mean

    said = printed("report", learned)
    assert f"learned-25 reaches {mean} (mean of kinds, 95 % CI " in said
    page = (first.home / "learned25" / "report.html").read_text(encoding="utf-8")
    assert f'<dd class="value">{mean}</dd><dd class="detail">mean of kinds ' in page
    assert f"; all questions {every}</dd>" in page
    card = (first.home / "learned25" / "card.md").read_text(encoding="utf-8")
    assert f"| FineSearch | mean of kinds | {mean} |" in card

    header, row, *_ = printed("compare", learned, full).splitlines()
    shown = dict(zip(re.split(r"\s{2,}", header), re.split(r"\s{2,}", row), strict=True))
    assert (shown["mean of kinds"], shown["all questions"]) == (mean, every)

    data = f"finesearch={first.home / 'data' / 'test'}"
    asked = ("eval", learned, "--bench", "finesearch", "--data", data, "--only", "report")
    told = printed(*asked, "--max-response-tokens", "24")
    assert f"| mean of kinds | {100 * (summary.primary.value or 0):.2f} |" in told
    assert f"| all questions | {100 * (summary.beside.value or 0):.2f} |" in told


def printed(*command: str) -> str:
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 0, result.output
    return result.output


def test_report_and_compare_work_on_the_runs_of_a_demo(first: Demo) -> None:
    found = []
    for run in ("learned25", "full"):
        evaluation = read_run(first.home / run).own_evaluation
        assert evaluation is not None
        (result,) = evaluation.results
        assert result == first.results.evaluated[run]
        found.append(result)
    assert found[0].is_comparable(found[1])
    learned, full = (str(first.home / run) for run in ("learned25", "full"))
    before = value_text(first.results.evaluated["base"].summary.primary)
    assert f", from {before} of its base (" in printed("report", learned)
    header, *rows = printed("compare", learned, full).splitlines()[:3]
    place = re.split(r"\s{2,}", header).index("its base")
    assert [re.split(r"\s{2,}", row)[place] for row in rows] == [before, before]


def test_the_evaluation_of_a_demo_is_that_of_eval_and_asks_nothing_again(
    first: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("everything has its answer already")

    monkeypatch.setattr(LocalAnswerer, "answers", asked)
    data = f"finesearch={first.home / 'data' / 'test'}"
    command = ["eval", str(first.home / "full"), "--bench", "finesearch", "--data", data]
    result = CliRunner().invoke(app, [*command, "--max-response-tokens", "24"])
    assert result.exit_code == 0, result.output


def test_the_base_of_a_run_is_evaluated_by_eval_and_the_demo_did_that_already(
    first: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("everything has its answer already")

    monkeypatch.setattr(LocalAnswerer, "answers", asked)
    run, data = str(first.home / "full"), f"finesearch={first.home / 'data' / 'test'}"
    command = ("eval", run, "--base", "--bench", "finesearch", "--data", data)
    before = (first.home / "full" / "eval-base" / "report.json").read_bytes()
    printed(*command, "--max-response-tokens", "24")
    after = (first.home / "full" / "eval-base" / "report.json").read_bytes()
    assert json.loads(after)["benchmarks"] == json.loads(before)["benchmarks"]


def test_the_base_is_asked_about_crops_too(first: Demo) -> None:
    results = first.results
    assert set(results.answers) == {*LABELS, CROPS}
    assert list(results.answers[CROPS]) == [each.id for each in results.examples if each.has_crop]


def test_what_is_printed_is_the_table_and_where_the_page_is(first: Demo) -> None:
    for row in table(first.results):
        assert re.search(r"\s+".join(map(re.escape, row)), first.output)
    assert f"{first.home / 'page.html'}; open it in a browser." in first.output


def test_at_least_half_of_the_learned_steps_choose_by_prediction(first: Demo) -> None:
    steps = first.results.runs["learned25"].queries
    ranked = [step for step in steps if step.score_of and set(step.selected) - set(step.explored)]
    assert 2 * len(ranked) >= len(steps)
    assert cells(first.results)["that ranked by prediction"] == ("-", str(len(ranked)), "0")


def test_another_seed_gives_other_pictures_and_other_numbers(first: Demo, other: Demo) -> None:
    questions = [
        {(each.question, each.image.name) for each in each.results.examples}
        for each in (first, other)
    ]
    assert not questions[0] & questions[1]
    assert cells(first.results) != cells(other.results)
    assert first.results.answers["full"] != other.results.answers["full"]


def test_no_evaluated_picture_was_trained_on(first: Demo) -> None:
    sets = [PreparedSet.load(first.home / "data" / split) for split in ("train", "test")]
    train, test = ({example.image.name for example in each.examples} for each in sets)
    assert not train & test


def test_the_page_shows_its_examples_and_asks_nothing_of_the_network(first: Demo) -> None:
    page = (first.home / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//|<script|@import|url\(", re.sub(r"data:[^\"]*", "", page))
    # The verdict and its chart come before the explanation and the table.
    assert re.search(r"<td>[\d,]+ \(\d+\.\d\u00a0%\)</td>", unescape(page))
    verdict, chart = page.index('class="outcome"'), page.index("<svg")
    assert verdict < chart < page.index("A small vision-language model") < page.index("<table")
    articles = re.findall(r"<article>.*?</article>", page, re.DOTALL)
    results = first.results
    changes = [change(results, each.id) for each in results.examples if each.has_crop]
    wanted = sum(min(changes.count(name), most) for name, (_, most) in GROUPS.items())
    assert len(articles) == wanted > 0
    asked = {unescape(text) for text in re.findall(r'class="question">(.*?)</p>', page)}
    assert asked <= {example.question for example in results.examples}
    for article in articles:
        assert article.count("data:image/") == 2
        assert len(re.findall(r'<span class="mark (right|wrong)">\1</span>', article)) == 3


def test_the_page_is_made_from_the_folder_without_torch(first: Demo) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from bas_opd.report.demo import read_demo, write_page\n"
        "write_page(read_demo(Path(sys.argv[1])))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    before = (first.home / "page.html").read_bytes()
    subprocess.run([sys.executable, "-c", code, str(first.home)], check=True)
    assert (first.home / "page.html").read_bytes() == before


def test_a_model_that_writes_markup_shows_it_as_text(other: Demo) -> None:
    results = other.results
    bold = {
        name: Answer(output="<b>bold", is_correct=answer.is_correct)
        for name, answer in results.answers["base"].items()
    }
    shown = replace(results, answers={**results.answers, "base": bold})
    page = write_page(shown).read_text(encoding="utf-8")
    assert "&lt;b&gt;bold" in page
    assert "<b>" not in page
