"""Runs of the baselines verify from their records alone, and forged records do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from baseline_fixtures import PRESETS, reward_even_tokens, short_config
from run_fixtures import Silent, events_of, rewrite

from bas_opd.cli.plan import lines
from bas_opd.commands.export import export
from bas_opd.commands.plan import plan
from bas_opd.commands.watch import watch
from bas_opd.report.pages.writing import write_comparison, write_report
from bas_opd.run import loop
from bas_opd.run.history import read_history
from bas_opd.run.record import PolicyRecord
from bas_opd.run.verify import verify
from bas_opd.run.view import RunView, shown_totals

Forge = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def runs(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("runs")
    quiet = ("run.examples_per_step=0", "rollout.per_prompt=2")
    with pytest.MonkeyPatch.context() as patch:
        reward_even_tokens(patch, unread=5)
        return {
            name: loop.train(
                short_config(name, home, small_qwen35, name, *quiet), Silent()
            ).directory
            for name in PRESETS
        }


@pytest.mark.parametrize("name", PRESETS)
def test_the_records_of_a_baseline_verify(name: str, runs: dict[str, Path]) -> None:
    found = verify(runs[name], draws=True)
    assert [check.problems for check in found.checks if not check.is_sound] == []
    assert found.steps == 3
    names = {check.name for check in found.checks}
    assert ("budget" in names) == ("journal" in names) == (name in ("opsd", "opsd-frozen"))
    assert ("learning" in names) == (name not in ("opsd", "opsd-frozen"))


@pytest.mark.parametrize("name", PRESETS)
def test_a_report_and_a_plan_are_made_of_a_baseline(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    written = write_report(runs[name], tmp_path / "report.html")
    page = written.page.read_text()
    method = name.split("-")[0]
    assert written.sentence.startswith(f"{method} trained for 3 steps")
    learned_from = {
        "opsd": "scored by a teacher that is told the answer",
        "sft": "responses of the initial model to the crop",
    }
    assert learned_from.get(method, "graded rollouts") in written.sentence
    assert ("teacher calls" in page.partition("<nav")[0]) == (method == "opsd")
    assert "The budget was kept" not in page
    assert "learned-25" not in page

    planned = plan(read_history(runs[name]).config())
    assert planned.has_queries == (method == "opsd")
    assert planned.memory is not None
    keeps = name in ("sft", "sft-unfiltered", "grpo", "opsd", "opsd-frozen")
    assert (planned.memory.teacher > 0) == keeps


@pytest.mark.parametrize("name", ["grpo", "grpo-released", "dapo"])
def test_a_plan_tells_the_reference_from_the_pass_before_several_updates(
    name: str, runs: dict[str, Path]
) -> None:
    planned = plan(read_history(runs[name]).config())
    tokens, said = planned.tokens, "\n".join(lines(planned))
    assert ("reference reads" in said) == (name == "grpo")
    assert ("old log-probs" in said) == (name != "grpo")
    steps = [step for step in read_history(runs[name]).steps if isinstance(step, PolicyRecord)]
    # Every row has a KL; only mixed groups are rescored, for DAPO also those of later rounds.
    assert tokens.teacher == pytest.approx(sum(s.reference_tokens for s in steps), rel=0.15)
    rescored = sum(step.rescored_tokens for step in steps)
    assert (rescored > 0) == (name != "grpo")
    assert rescored <= 1.1 * tokens.rescored <= 6 * rescored


@pytest.mark.parametrize("name", ["sft", "grpo", "dapo", "opsd"])
def test_the_card_of_an_exported_baseline_says_how_it_was_trained(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    export(runs[name], tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"trained by {name}" in card
    assert f"| method | {name} |" in card
    assert "the crop scored" not in card
    assert ("| optimizer updates | " in card) == (name != "opsd")
    assert ("| teacher calls | " in card) == (name == "opsd")


def test_runs_of_several_methods_are_compared(runs: dict[str, Path], tmp_path: Path) -> None:
    written = write_comparison([runs[n] for n in ("grpo", "dapo", "sft", "opsd")], tmp_path / "c")
    page = written.page.read_text()
    for name in ("grpo", "dapo", "sft", "opsd"):
        assert f"<strong>{name}</strong>" in page
    assert "No run has full querying" in page  # OPSD is no reference for queries to a crop teacher


def test_watching_a_baseline_names_its_method(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    watch(runs["grpo"], every=None)
    shown = capsys.readouterr().out
    assert "grpo" in shown
    assert "query ratio" not in shown


def test_watching_a_baseline_shows_what_it_earned(runs: dict[str, Path]) -> None:
    view = RunView(total=3)
    for step in read_history(runs["dapo"]).steps:
        view.add(step)
    screen = "\n".join(view.lines())
    assert "right " in view.line()
    assert "rollouts " in screen
    assert "teacher calls" not in screen
    names = shown_totals(view.ledger.totals())
    assert "updates" in names
    assert "candidates" not in names


def forged(run: Path, home: Path, forge: Forge, *, event: str = "step") -> list[str]:
    """Return what is found wrong with a copy of a run in which an event was changed."""
    copy = home / "forged"
    shutil.copytree(run, copy)
    events = events_of(copy)
    forge(next(each for each in events if each["event"] == event))
    rewrite(copy, events)
    return [problem for check in verify(copy).checks for problem in check.problems]


def first_row(event: dict[str, Any]) -> int:
    return event["updates"][0]["rows"][0]


def flip_grade(event: dict[str, Any]) -> None:
    row = first_row(event)
    event["grades"][row] = "wrong" if event["grades"][row] == "right" else "right"


def raise_advantage(event: dict[str, Any]) -> None:
    event["advantages"][first_row(event)] *= 1.01


def raise_reward(event: dict[str, Any]) -> None:
    event["rewards"][first_row(event)] += 0.5


def keep_another(event: dict[str, Any]) -> None:
    event["kept"] = event["kept"][:-1]


def learn_from_another(event: dict[str, Any]) -> None:
    event["updates"][0]["rows"] = event["updates"][0]["rows"][1:]


def hide_a_round(event: dict[str, Any]) -> None:
    event["rounds"] = [sum(event["rounds"])]


def another_round(event: dict[str, Any]) -> None:
    event["rounds"] = [*event["rounds"], 0]


@pytest.mark.parametrize("name", ["grpo", "grpo-released", "dapo"])
@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (flip_grade, "rewards do not follow from grades"),
        (raise_advantage, "advantages do not follow from rewards"),
        (raise_reward, "rewards do not follow from grades"),
        (keep_another, "kept names other prompts"),
        (learn_from_another, "updates are not of the rows"),
        (another_round, "rounds"),
    ],
)
def test_a_forged_step_is_refused(
    name: str, forge: Forge, words: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    assert any(words in problem for problem in forged(runs[name], tmp_path, forge))


@pytest.mark.parametrize("name", PRESETS)
def test_examples_that_the_seed_does_not_draw_are_refused(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    def forge(event: dict[str, Any]) -> None:
        event["examples"] = event["examples"][::-1]

    assert any(
        "examples are not those that the seed draws" in problem
        for problem in forged(runs[name], tmp_path, forge)
    )


def test_a_hidden_round_shows_in_the_cursor(runs: dict[str, Path], tmp_path: Path) -> None:
    events = [event for event in events_of(runs["dapo"]) if event["event"] == "step"]
    assert any(len(event["rounds"]) > 1 for event in events)
    many = next(event["step"] for event in events if len(event["rounds"]) > 1)
    copy = tmp_path / "forged"
    shutil.copytree(runs["dapo"], copy)
    changed = events_of(copy)
    for event in changed:
        if event["event"] == "step" and event["step"] == many:
            hide_a_round(event)
    rewrite(copy, changed)
    problems = [problem for check in verify(copy).checks for problem in check.problems]
    assert any("cursor of step-" in problem for problem in problems)
    assert any("do not make" in problem for problem in problems)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("grpo", "reference_rows", 1),
        ("grpo", "rescored_tokens", 5),
        ("grpo-released", "rescored_tokens", 0),
        ("grpo-released", "student_tokens", 1),
        ("grpo", "reference_tokens", 10**6),
        ("grpo", "total_tokens", 1),
        ("sft", "generated", 1),
        ("sft", "per_prompt", 5),
        ("sft", "rows", []),
        ("sft", "rows", [999]),
        ("sft", "per_prompt", 1),
        ("sft", "student_tokens is 1, but its rows make", 1),
        ("sft", "student_prompt_tokens has one that is not from 1 to", [-107, 100, 100, 100]),
        ("sft", "student_prompt_tokens and examples differ", [1]),
        ("sft-unfiltered", "rows", []),
        ("dapo", "is_valid", False),
    ],
)
def test_a_forged_number_is_refused(
    name: str, field: str, value: Any, runs: dict[str, Path], tmp_path: Path
) -> None:
    def forge(event: dict[str, Any]) -> None:
        forged_field = field.split()[0]
        assert event[forged_field] != value
        event[forged_field] = value

    assert any(field in problem for problem in forged(runs[name], tmp_path, forge))


def test_a_step_of_sft_whose_prompts_are_left_out_is_refused(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "forged"
    shutil.copytree(runs["sft"], copy)
    events = events_of(copy)
    last = [event for event in events if event["event"] == "step"][-1]
    del last["student_prompt_tokens"]
    rewrite(copy, events)
    problems = [problem for check in verify(copy).checks for problem in check.problems]
    assert any("student_prompt_tokens is missing, which earlier" in each for each in problems)


@pytest.mark.parametrize("total", ["rollouts", "rewards", "deferred", "updates", "dropped_groups"])
def test_a_forged_total_is_refused(total: str, runs: dict[str, Path], tmp_path: Path) -> None:
    def forge(event: dict[str, Any]) -> None:
        event["totals"][total] += 1

    problems = forged(runs["dapo"], tmp_path, forge, event="finished")
    assert any(problem.startswith(f"{total} of the totals") for problem in problems)


def test_a_step_of_another_method_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    def forge(event: dict[str, Any]) -> None:
        for key in ("advantages", "candidates", "generated"):
            event.pop(key, None)

    assert any("is no step of grpo" in each for each in forged(runs["grpo"], tmp_path, forge))


def test_a_grade_that_its_text_contradicts_is_refused(small_qwen35: Path, tmp_path: Path) -> None:
    settings = ("run.steps=1", "run.examples_per_step=16")
    config = short_config("grpo", tmp_path, small_qwen35, "run", *settings)
    run = loop.train(config, Silent()).directory
    assert verify(run).is_sound

    def forge(event: dict[str, Any]) -> None:
        short = [row for row, n in enumerate(event["response_tokens"]) if n < 6]
        shown = {each["row"]: each for each in event["shown"]}
        if short:
            shown[short[0]]["response"] = shown[short[0]]["answer"]
        else:  # a random model seldom ends
            event["response_tokens"][0] = 5
            shown[0]["response"] = shown[0]["answer"]

    assert any("reads as right" in problem for problem in forged(run, tmp_path, forge))
