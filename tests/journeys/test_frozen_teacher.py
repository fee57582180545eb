"""A teacher that is another, larger model: checked, on record, and never changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from run_fixtures import OFTEN, Silent, small_config, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures
from small_models import build_small_model
from stage_fixtures import draw, make_examples, make_model

from bas_opd.audit.subject import Request, Subject
from bas_opd.commands.plan import plan
from bas_opd.config import Config, load_config, preset
from bas_opd.data.images import open_crop
from bas_opd.data.views import crop_view
from bas_opd.errors import ConfigError, ModelError, PreemptionError
from bas_opd.model.folder import model_hashes
from bas_opd.model.loading import open_model
from bas_opd.run import loop
from bas_opd.run.state import build_method
from bas_opd.run.verify import verify
from bas_opd.teacher import FrozenTeacher


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("larger"), hidden=128, layers=8, seed=5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("data"), n=16, seed=1).folder


def config(model: Path, teacher: Path, data: Path, output: Path, *overrides: str) -> Config:
    return tiny(model, data, output, *OFTEN, f"teacher.path={teacher}", *overrides)


def test_it_scores_the_students_tokens_with_its_own_network(
    small_qwen35: Path, larger: Path, tmp_path: Path
) -> None:
    student = make_model(small_qwen35)
    rollouts = draw(student, make_examples(tmp_path))
    model = open_model(larger, device="cpu", frozen=True)
    assert not model.trainable()
    teacher = FrozenTeacher(model, crop_view)
    scores = teacher.score(rollouts, (4, 0))
    for row, hidden in scores.hidden.items():
        example = rollouts.example_of(row)
        prompt = model.processor.encode(open_crop(example), example.question)
        ids = torch.cat([prompt.input_ids, rollouts.tokens[row, : int(rollouts.lengths[row])]])
        logits = model.network(
            input_ids=ids[None],
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.grid,
            mm_token_type_ids=model.processor.mm_token_type_ids(ids[None]),
        ).logits[0, prompt.length - 1 : -1]
        torch.testing.assert_close(scores.head.logits(hidden), logits, atol=2e-5, rtol=1e-4)
    before = {name: p.clone() for name, p in model.network.named_parameters()}
    teacher.follow()
    for name, parameter in model.network.named_parameters():
        assert torch.equal(parameter, before[name])
    assert teacher.parts() == {}


@pytest.mark.parametrize("budget", ["calls", "processed_tokens"])
def test_a_run_is_taught_by_it_resumes_to_the_same_end_and_is_verified(
    budget: str,
    small_qwen35: Path,
    larger: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = f"select.budget={budget}"
    whole = loop.train(config(small_qwen35, larger, data, tmp_path / "whole", kind), Silent())
    own = loop.train(tiny(small_qwen35, data, tmp_path / "own", *OFTEN, kind), Silent())
    assert model_hashes(whole.model) != model_hashes(own.model)
    assert not list((whole.directory / "checkpoints").rglob("teacher*"))
    with monkeypatch.context() as patch:
        stop_at(patch, 14)
        with pytest.raises(PreemptionError):
            loop.train(config(small_qwen35, larger, data, tmp_path / "run", kind), Silent())
    resumed = loop.train(config(small_qwen35, larger, data, tmp_path / "run", kind), Silent())
    assert_same_end(resumed.directory, whole.directory)
    assert verify(whole.directory, draws=True).is_sound


def test_its_files_are_on_record_and_a_changed_one_is_refused(
    small_qwen35: Path,
    larger: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(larger, teacher)
    settings = config(small_qwen35, teacher, data, tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_at(patch, 14)
        with pytest.raises(PreemptionError):
            loop.train(settings, Silent())
    run = tmp_path / "run"
    identity = json.loads((run / "run.json").read_text())
    assert identity["teacher_files"] == model_hashes(teacher)
    template = teacher / "chat_template.jinja"
    original = template.read_text()
    template.write_text(original + "\n")
    with pytest.raises(ModelError, match=r"teacher/chat_template\.jinja has changed"):
        loop.train(settings, Silent())
    with pytest.raises(ModelError, match=r"not the one of the run: chat_template\.jinja"):
        _ = Subject(Request(run=run)).method
    template.write_text(original)
    loop.train(settings, Silent())
    (run / "run.json").write_text(json.dumps({**identity, "teacher_files": {}}))
    problems = [each for check in verify(run).checks for each in check.problems]
    assert any("teacher_files of run.json is {}" in each for each in problems)


def test_an_audit_asks_it(small_qwen35: Path, larger: Path, data: Path, tmp_path: Path) -> None:
    run = loop.train(config(small_qwen35, larger, data, tmp_path / "run"), Silent()).directory
    own = Subject(Request(run=run))
    own.restore_newest()
    assert isinstance(own.method.stages.teacher, FrozenTeacher)
    stand_in = Subject(Request(run=run, teacher="student"))
    stand_in.restore_newest()
    assert stand_in.method.stages.teacher.model is stand_in.method.model  # type: ignore[attr-defined]


def edited(folder: Path, source: Path, name: str, edit: Any) -> Path:
    shutil.copytree(source, folder)
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))
    return folder


def swap_two_tokens(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]


def grow(content: dict[str, Any]) -> None:
    content["text_config"]["vocab_size"] += 16


def test_other_tokens_are_refused_before_any_weights_are_read(
    small_qwen35: Path, larger: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("Weights were read.")

    monkeypatch.setattr("bas_opd.run.state.open_model", read)
    renamed = edited(tmp_path / "renamed", larger, "tokenizer.json", swap_two_tokens)
    with pytest.raises(ModelError, match=r"another tokenizer .* 2 tokens differ, such as 'A'"):
        build_method(config(small_qwen35, renamed, data, tmp_path / "run"))
    wider = edited(tmp_path / "wider", larger, "config.json", grow)
    with pytest.raises(ModelError, match=r"predicts 320 token ids .* 304"):
        build_method(config(small_qwen35, wider, data, tmp_path / "run"))
    assert "another tokenizer" in str(
        plan(config(small_qwen35, renamed, data, tmp_path / "run")).unknown
    )


def test_the_plan_counts_its_memory_on_the_device_or_on_the_host(
    small_qwen35: Path, larger: Path, tmp_path: Path
) -> None:
    live = plan(small_config(tmp_path, small_qwen35, "teacher.mode=live")).memory
    other = plan(small_config(tmp_path, small_qwen35, f"teacher.path={larger}")).memory
    assert live is not None
    assert other is not None
    network = open_model(larger, device="cpu", frozen=True).network
    held = sum(p.numel() * p.element_size() for p in network.parameters())
    assert (other.teacher, other.own_teacher) == (0, held)
    assert other.device - live.device == held
    assert other.on_host(offload=False) == 0
    assert other.while_sampling(offload=False) - live.while_sampling(offload=False) == held
    assert other.host_copy == live.host_copy
    assert other.on_host(offload=True) - live.on_host(offload=True) == held
    assert other.while_sampling(offload=True) == live.while_sampling(offload=True)
    head = cast("Any", network).lm_head.weight.nbytes
    assert other.teacher_head == head
    assert other.on_device(offload=True) - live.on_device(offload=True) == head
    assert 0 < other.streamed_teacher < held / 2
    on_host = replace(other, is_offloaded=True)
    assert on_host.copied == replace(live, is_offloaded=True).copied
    # Where the student is small, the moment in which its teacher scores is the largest.
    assert replace(other, streamed_teacher=10**9).on_device(offload=True) > 10**9


def test_it_never_follows_the_student() -> None:
    paths = ["model.path=m", "data.path=d", "teacher.path=t"]
    assert load_config(preset("learned25"), paths).teacher.mode == "frozen"
    with pytest.raises(ConfigError, match=r"never changes, but teacher\.mode is ema"):
        load_config(preset("learned25"), [*paths, "teacher.mode=ema"])
    with pytest.raises(ConfigError, match="the method grpo does not use it"):
        load_config(preset("grpo"), paths)
