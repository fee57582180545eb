from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_fixtures import SMALL_STEPS, Silent, tiny
from shapes import make_pictures

from bas_opd.data.order import PromptStream
from bas_opd.errors import CheckpointError, ConfigError
from bas_opd.rollout import Sampler
from bas_opd.run import loop
from bas_opd.run.forecast import planned_steps
from bas_opd.run.record_file import read_records
from bas_opd.run.state import TrainState, build_method


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("data") / "boxes", n=16, seed=1).folder


def test_empty_steps_are_not_bad_steps(small_qwen35: Path, boxes: Path, tmp_path: Path) -> None:
    config = tiny(
        small_qwen35,
        boxes,
        tmp_path / "run",
        *SMALL_STEPS,
        "select.query_ratio=0.07",  # K = 1 of 16 candidates, 0 of 12
        "run.max_bad_steps=1",
    )
    totals = loop.train(config, Silent()).totals
    assert 0 < totals["empty_steps"] < totals["steps"]


def test_only_bad_steps_in_a_row_stop_a_run(
    small_qwen35: Path, boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def every_other(*args: Any) -> Any:
        calls.append(1)
        return clip(*args) * (float("nan") if len(calls) % 2 else 1.0)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", every_other)
    config = tiny(small_qwen35, boxes, tmp_path / "run", *SMALL_STEPS, "run.max_bad_steps=2")
    assert loop.train(config, Silent()).totals["skipped_steps"] == 2


def test_a_run_without_a_number_of_steps_takes_its_epochs(
    small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    config = tiny(
        small_qwen35, boxes, tmp_path / "run", "rollout.prompts_per_step=5", "run.epochs=3"
    )
    config = config.model_copy(update={"run": config.run.model_copy(update={"steps": None})})
    data = loop.PreparedSet.load(boxes)
    assert planned_steps(config, data) == 9
    falling = ("run.steps=9", "optim.decay_until=8")
    with pytest.raises(ConfigError, match=r"reaches 0 at step 8 .*run has 9 steps"):
        planned_steps(tiny(small_qwen35, boxes, tmp_path / "run", *falling), data)


def test_another_seed_gives_another_order(small_qwen35: Path, boxes: Path, tmp_path: Path) -> None:
    seen = []
    for seed in (1, 2):
        config = tiny(
            small_qwen35,
            boxes,
            tmp_path / str(seed),
            *SMALL_STEPS,
            f"run.seed={seed}",
            "run.steps=1",
        )
        run = loop.train(config, Silent())
        seen.append(
            next(e for e in read_records(run.directory / "records.jsonl") if e["event"] == "step")
        )
    assert seen[0]["examples"] != seen[1]["examples"]


def test_bad_steps_are_remembered(small_qwen35: Path, boxes: Path, tmp_path: Path) -> None:
    method = build_method(tiny(small_qwen35, boxes, tmp_path / "run"))
    state, other = (
        TrainState(method=method, prompts=PromptStream((), per_step=1, seed=0)) for _ in range(2)
    )
    state.bad_steps, state.prompts.cursor = 3, 7
    other.restore(state.capture())
    assert (other.bad_steps, other.prompts.cursor) == (3, 7)


def test_a_checkpoint_without_a_cursor_has_taken_one_batch_a_step(
    small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    method = build_method(tiny(small_qwen35, boxes, tmp_path / "run"))
    state = TrainState(method=method, prompts=PromptStream((), per_step=1, seed=0), step=5)
    snapshot = state.capture()
    old = {key: value for key, value in snapshot.data.items() if key != "cursor"}
    state.restore(replace(snapshot, data=old))
    assert state.prompts.cursor == 5


@pytest.mark.parametrize("part", ["student", "optimiser", "teacher", "selector"])
def test_a_checkpoint_that_lacks_a_part_is_refused(
    part: str, small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    method = build_method(tiny(small_qwen35, boxes, tmp_path / "run"))
    state = TrainState(method=method, prompts=PromptStream((), per_step=1, seed=0))
    snapshot = state.capture()
    kept = {name: tensors for name, tensors in snapshot.tensors.items() if name != part}
    with pytest.raises(CheckpointError, match=f"does not hold the {part} of this run"):
        state.restore(replace(snapshot, tensors=kept))


def test_the_engine_gets_the_students_weights_before_every_step(
    small_qwen35: Path, boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[tuple[int, int]] = []
    monkeypatch.setattr(
        Sampler, "load_weights", lambda _, named, version: versions.append((version, len(named)))
    )
    config = tiny(small_qwen35, boxes, tmp_path / "run", *SMALL_STEPS, "run.steps=2")
    loop.train(config, Silent())
    trained = len(build_method(config).model.trainable())
    assert versions == [(0, trained), (1, trained)]
