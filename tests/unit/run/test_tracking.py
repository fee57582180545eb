from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from run_fixtures import Silent, events_of, small_config
from synthetic_rewards import POLICY_STEP

from bas_opd.errors import ConfigError
from bas_opd.run import loop
from bas_opd.run.record import QueryRecord, parse_step
from bas_opd.run.tracking import Tracked, check_trackers, tracked_values


class Service(types.ModuleType):
    """A module that takes what wandb and trackio take."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0
        self._fails_at = fails_at

    def init(self, **settings: Any) -> None:
        self.begun.append(settings)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if step == self._fails_at:
            raise ConnectionError("no route to the dashboard")
        self.logged.append((step, dict(values)))

    def finish(self) -> None:
        self.finished += 1


def tracked_run(home: Path, model: Path, name: str) -> tuple[Path, Silent]:
    config, console = small_config(home, model), Silent()
    return loop.train(config, Tracked(console, config, [name])).directory, console


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_gets_the_numbers_of_every_step(
    tmp_path: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, name, service)
    run, _ = tracked_run(tmp_path, small_qwen35, name)
    steps = [event for event in events_of(run) if event["event"] == "step"]
    assert service.logged == [
        (event["step"] + 1, tracked_values(parse_step(event))) for event in steps
    ]
    assert service.begun[0]["config"]["select"]["policy"] == "learned"
    assert service.finished == 1
    assert service.begun[0]["name"].startswith(run.name)
    # Of wandb alone: trackio takes no such settings, and keeps nothing of the terminal.
    assert service.begun[0].get("settings") == ({"console": "off"} if name == "wandb" else None)


def test_a_service_that_fails_is_disabled_and_the_run_continues(
    tmp_path: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(fails_at=3)
    monkeypatch.setitem(sys.modules, "wandb", service)
    run, console = tracked_run(tmp_path, small_qwen35, "wandb")
    assert [step for step, _ in service.logged] == [1, 2]
    assert events_of(run)[-1]["event"] == "finished"
    assert any("no route to the dashboard" in said for said in console.messages)


def test_tensorboard_holds_the_numbers_of_the_records(tmp_path: Path, small_qwen35: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, console = tracked_run(tmp_path, small_qwen35, "tensorboard")
    assert not any("failed" in said for said in console.messages)
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    losses = {each.step: each.value for each in events.Scalars("loss")}
    steps = [event for event in events_of(run) if event["event"] == "step"]
    assert losses == {event["step"] + 1: pytest.approx(event["loss"]) for event in steps}


def test_no_tracker_is_imported_unless_it_is_asked_for(
    tmp_path: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "trackio", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    config, console = small_config(tmp_path, small_qwen35), Silent()
    loop.train(config, Tracked(console, config, []))
    assert not any("The tracker" in said for said in console.messages)


def test_an_unknown_or_missing_tracker_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="no tracker named 'mlflow'"):
        check_trackers(["mlflow"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install trackio"):
        check_trackers(["trackio"])


def test_what_is_not_known_is_not_sent() -> None:
    step = QueryRecord(
        step=0,
        examples=[],
        per_prompt=1,
        prompt_tokens=[],
        response_tokens=[],
        student_tokens=0,
        is_valid=False,
        loss=None,
        gradient_norm=0.0,
        learning_rate=1e-6,
        candidates=[],
        feature_names=[],
        features=[],
        has_entropy=True,
        query_ratio="0.25",
        scored=[],
        overrun=0,
        processed_tokens=0,
        prefilled_prompts=0,
        learned=False,
        dropped_labels=0,
        calls=0,
        budget=0,
        scored_tokens=0,
        candidate_tokens=0,
        selected=[],
        explored=[],
        scores=[],
        utility=[],
        seconds={"rollout": 1.5},
    )
    assert tracked_values(step) == {
        "gradient_norm": 0.0,
        "learning_rate": 1e-6,
        "queries/calls": 0.0,
        "queries/budget": 0.0,
        "queries/scored_tokens": 0.0,
        "seconds/rollout": 1.5,
    }


def test_a_tracker_gets_the_curves_of_rewards() -> None:
    step = parse_step({**POLICY_STEP, "clip_share": 0.02, "entropy": 1.5, "learning_rate": 1e-6})
    assert tracked_values(step) == {
        "reward/mean": 0.25,
        "reward/right": 0.25,
        "reward/deferred": 0.0,
        "policy/kl": 0.00123,
        "policy/clip_share": 0.02,
        "policy/entropy": 1.5,
        "policy/kept": 1.0,
        "policy/rounds": 1.0,
        "policy/updates": 1.0,
        "response_tokens": 5.0,
        "loss": 0.0,
        "gradient_norm": 0.8,
        "learning_rate": 1e-6,
        "seconds/rollout": 2.0,
    }
