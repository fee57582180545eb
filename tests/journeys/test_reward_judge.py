"""A judge of rewards: decides what no rule can read, within its budget, and never twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from baseline_fixtures import short_config
from run_fixtures import Silent, events_of, rewrite, stop_at
from run_states import assert_same_end
from serving_fixtures import ChatServer, says

from bas_opd.answers import AnswerKey
from bas_opd.config import Config, load_config, preset
from bas_opd.errors import BasOpdError, ConfigError, PreemptionError
from bas_opd.evaluate.rewarding import KNOWN, reward_judge
from bas_opd.run import loop
from bas_opd.run.history import read_history
from bas_opd.run.verify import verify

Make = Callable[..., Config]


@pytest.fixture
def judge() -> Iterator[ChatServer]:
    """A judge who says yes to every other answer, by its length."""

    def play(request: dict[str, Any]) -> Any:
        return says("Yes" if len(answer_of(request)) % 2 else "No")

    with ChatServer(play).running() as server:
        yield server


@pytest.fixture
def config(
    small_qwen35: Path, tmp_path: Path, judge: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> Make:
    def unread(key: AnswerKey, output: str, *, was_cut: bool | None = None) -> str:
        return "right" if output == key.reference else "unread"

    monkeypatch.setattr(AnswerKey, "grade", unread)
    served = (f"judge.url={judge.url}", "judge.model=a-judge", "judge.max_requests=1000")
    return lambda name, output, *overrides: short_config(
        name, tmp_path, small_qwen35, output, *served, *overrides
    )


def answer_of(request: dict[str, Any]) -> str:
    lines = request["messages"][1]["content"].splitlines()
    return json.loads(next(line for line in lines if line.startswith("answer: "))[8:])


def contents(judge: ChatServer) -> list[str]:
    """What was asked, without the marks that differ and the request that checks the address."""
    texts = ["\n".join(r["messages"][1]["content"].splitlines()[1:4]) for r in judge.requests]
    return [text for text in texts if KNOWN.question not in text]


def train(config: Config) -> Path:
    return loop.train(config, Silent(), judge=reward_judge(config)).directory


@pytest.mark.parametrize("name", ["sft", "grpo", "dapo"])
def test_what_no_rule_reads_is_decided_by_the_judge_and_never_asked_twice(
    name: str, config: Make, judge: ChatServer
) -> None:
    run = train(config(name, "run"))
    for step in read_history(run).steps:
        assert step.judged == list(range(len(step.response_tokens)))  # type: ignore[attr-defined]
        assert "unread" not in step.grades  # type: ignore[attr-defined]
    asked = contents(judge)
    assert len(asked) == len(set(asked)) > 4
    assert verify(run).is_sound
    finished = read_history(run).finished
    assert finished is not None
    assert finished.totals["judged"] == finished.totals["deferred"] == finished.totals["rewards"]


def test_a_resumed_run_asks_only_what_is_not_on_disk(
    config: Make, judge: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("grpo", "whole"))
    needed = len(contents(judge))
    with monkeypatch.context() as patch:
        stop_at(patch, 14)
        with pytest.raises(PreemptionError):
            train(config("grpo", "stopped"))
    assert_same_end(train(config("grpo", "stopped")), whole)
    assert len(contents(judge)) == 2 * needed


def test_beyond_its_budget_the_judge_is_not_asked(config: Make, judge: ChatServer) -> None:
    run = train(config("grpo", "run", "judge.max_requests=3"))
    assert len(contents(judge)) == 3
    finished = read_history(run).finished
    assert finished is not None
    assert 3 <= finished.totals["judged"] < finished.totals["deferred"] == 48
    assert verify(run).is_sound


def test_every_request_has_the_further_fields(config: Make, judge: ChatServer) -> None:
    train(config("grpo", "run", 'judge.extra={"top_k": 1}'))
    assert len(judge.requests) > 1
    assert {request["top_k"] for request in judge.requests} == {1}


def test_a_judge_that_is_not_there_is_told_before_the_model_is_loaded(config: Make) -> None:
    nobody = config("grpo", "run", "judge.url=http://127.0.0.1:9/v1", "model.path=nowhere")
    with pytest.raises(
        BasOpdError, match=r"\(judge.url\) cannot be used. .* usable reply in 1 try;"
    ):
        train(nobody)
    keyless = config("grpo", "run", "judge.key_variable=NO_SUCH_KEY", "model.path=nowhere")
    with pytest.raises(ConfigError, match="NO_SUCH_KEY, which should hold the key"):
        train(keyless)


def test_a_judge_and_its_setting_come_together(config: Make) -> None:
    with pytest.raises(ConfigError, match=r"judge.url"):
        loop.train(config("grpo", "run", "model.path=nowhere"), Silent())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("opsd", ("judge.url=http://localhost/v1",), "the method opsd does not use it"),
        ("grpo", ("judge.url=http://localhost/v1",), "Set judge.model"),
        ("grpo", ("judge.model=a-judge",), "no judge.url"),
        (
            "grpo",
            ("judge.url=http://localhost/v1", "judge.extra=[]"),
            r"judge.extra '\[\]' is no JSON",
        ),
        ("grpo", ("judge.url=http://localhost/v1", 'judge.extra={"a": NaN}'), "no JSON object"),
        (
            "sft-unfiltered",
            ("judge.url=http://localhost/v1", "judge.model=a-judge"),
            "grades no response",
        ),
    ],
)
def test_settings_of_a_judge_without_work_are_refused(
    name: str, settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(preset(name), ["model.path=x", "data.path=x", *settings])


def test_judged_rows_of_a_run_without_a_judge_are_refused(
    small_qwen35: Path, tmp_path: Path
) -> None:
    config = short_config("grpo", tmp_path, small_qwen35, "run", "run.steps=1")
    run = loop.train(config, Silent()).directory
    events = events_of(run)
    next(event for event in events if event["event"] == "step")["judged"] = [0]
    rewrite(run, events)
    problems = [problem for check in verify(run).checks for problem in check.problems]
    assert any("the run has no judge" in problem for problem in problems)
