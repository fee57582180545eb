"""A plan compared with the run it predicts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from run_fixtures import Silent, events_of, small_config, small_run
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.cli.plan import lines
from bas_opd.commands import fitting
from bas_opd.commands import plan as commands_plan
from bas_opd.commands.fitting import Fit, fit
from bas_opd.commands.named_set import load_data
from bas_opd.commands.plan import kept_steps, plan
from bas_opd.config.schema import Config, RunConfig
from bas_opd.data.images import image_size
from bas_opd.errors import ConfigError, DataError
from bas_opd.learn.eight_bit import UNPACKED
from bas_opd.model.activations import Activations, Batch, activations
from bas_opd.model.batches import PromptGroup, micro_batches, of_like_length
from bas_opd.model.size import model_size
from bas_opd.rollout.decoding import DRAW_BYTES
from bas_opd.run import footprint
from bas_opd.run.checkpoint import retain
from bas_opd.run.footprint import Memory, measure
from bas_opd.run.loop import train
from bas_opd.run.state import prompt_lengths


@pytest.fixture
def no_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a micro-batch keep nothing, so that the state alone decides."""
    monkeypatch.setattr(Activations, "kept", lambda *_, **__: 0)
    monkeypatch.setattr(fitting, "FP32", 0)


SETTINGS = ("select.policy=random", "run.steps=6", "run.keep_checkpoints=1", "run.keep_every=4")


@pytest.mark.parametrize("rank", [0, 4])
def test_a_plan_predicts_the_run(rank: int, small_qwen35: Path, tmp_path: Path) -> None:
    settings = (*SETTINGS, f"lora.rank={rank}")
    planned = plan(small_config(tmp_path, small_qwen35, *settings))
    run = small_run(tmp_path, small_qwen35, *settings)
    steps = [event for event in events_of(run) if event["event"] == "step"]
    totals = events_of(run)[-1]["totals"]

    assert planned.config_hash == events_of(run)[0]["config_hash"]
    assert planned.steps == len(steps)
    assert planned.calls == totals["calls"]
    assert planned.candidates == totals["candidates"]
    budgets = {step["budget"] for step in steps}
    assert (planned.least_budget, planned.most_budget) == (min(budgets), max(budgets))

    # These responses end at their limit of five tokens, or a little before.
    assert planned.tokens.response == 5
    for name, actual in (
        ("scored", totals["scored_tokens"]),
        ("teacher", totals["processed_tokens"]),
        ("student", totals["student_tokens"]),
        ("prefilled", totals["prefilled_tokens"]),
        ("sampled", totals["sampled_tokens"]),
        ("total", totals["total_tokens"]),
    ):
        assert getattr(planned.tokens, name) == pytest.approx(actual, rel=0.15)
    assert planned.tokens.prefilled == totals["prefilled_tokens"]

    assert planned.memory is not None
    assert planned.disk is not None
    checkpoints = list((run / "checkpoints").iterdir())
    assert planned.disk.kept_checkpoints == len(checkpoints) == 2
    tensors = [f for f in checkpoints[0].glob("*.safetensors") if f.stem != "selector"]
    written = sum(file.stat().st_size for file in tensors)
    assert planned.disk.checkpoint == pytest.approx(written, rel=0.2 if rank else 0.05)
    weights = sum(file.stat().st_size for file in (run / "model").glob("*.safetensors"))
    assert planned.disk.model == pytest.approx(weights, rel=0.2 if rank else 0.05)
    assert planned.disk.most == 3 * planned.disk.checkpoint + planned.disk.model
    assert (planned.memory.trained < planned.memory.parameters) == bool(rank)


@pytest.mark.parametrize("kind", ["scored_tokens", "processed_tokens"])
def test_a_plan_estimates_a_budget_in_tokens(kind: str, small_qwen35: Path, tmp_path: Path) -> None:
    settings = (*SETTINGS, f"select.budget={kind}", "select.query_ratio=0.6")
    planned = plan(small_config(tmp_path, small_qwen35, *settings))
    run = small_run(tmp_path, small_qwen35, *settings)
    steps = [event for event in events_of(run) if event["event"] == "step"]
    assert planned.budget_kind == kind
    assert planned.most_budget == pytest.approx(max(s["budget"] for s in steps), rel=0.15)
    assert planned.calls == pytest.approx(events_of(run)[-1]["totals"]["calls"], rel=0.4)


def test_a_plan_refuses_what_train_refuses_and_marks_a_run_that_never_ranks(
    small_qwen35: Path, tmp_path: Path
) -> None:
    assert plan(small_config(tmp_path, small_qwen35)).warnings == ()
    with pytest.raises(ConfigError, match=r"is 0\.01, so K pays for no query at any step"):
        plan(small_config(tmp_path, small_qwen35, "select.query_ratio=0.01"))
    dear = ("select.query_ratio=0.05", "select.budget=processed_tokens")
    with pytest.raises(ConfigError, match="K pays for no query at any step"):
        plan(small_config(tmp_path, small_qwen35, *dear))
    (never,) = plan(small_config(tmp_path, small_qwen35, "select.replay_start=99")).warnings
    assert never.startswith("The learned policy will rank no row of this run")


def test_a_plan_and_a_run_say_where_most_steps_ask_nothing(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("commands.plan", "run.loop"):
        monkeypatch.setattr(f"bas_opd.{place}.seldom_asks", lambda *_: "In 4 of 5 steps.")
    config = small_config(tmp_path, small_qwen35, "run.steps=1", "select.policy=random")
    assert plan(config).warnings == ("In 4 of 5 steps.",)
    console = Silent()
    train(config, console)
    assert "In 4 of 5 steps." in console.messages


def test_a_live_teacher_takes_no_memory(small_qwen35: Path, tmp_path: Path) -> None:
    live = plan(small_config(tmp_path, small_qwen35, "teacher.mode=live")).memory
    ema = plan(small_config(tmp_path, small_qwen35)).memory
    assert live is not None
    assert ema is not None
    assert (live.teacher, ema.teacher) == (0, 4 * ema.trained)
    assert ema.device - live.device == ema.host_copy - live.host_copy == ema.teacher


def test_without_a_model_the_queries_are_still_known(small_qwen35: Path, tmp_path: Path) -> None:
    known = plan(small_config(tmp_path, small_qwen35))
    blind = plan(small_config(tmp_path, tmp_path / "nowhere"))
    assert (blind.calls, blind.tokens.scored) == (known.calls, known.tokens.scored)
    assert blind.memory is blind.disk is blind.tokens.teacher is None
    assert "nowhere does not exist" in str(blind.unknown)


def test_a_probe_takes_two_steps_and_writes_nothing(small_qwen35: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, small_qwen35)
    before = sorted(tmp_path.rglob("*"))
    probe = plan(config, probe=True).probe
    assert probe is not None
    assert sorted(tmp_path.rglob("*")) == before
    assert sum(probe.phases.values()) <= probe.second_seconds
    assert probe.minutes == pytest.approx((probe.first_seconds + 4 * probe.second_seconds) / 60)


def test_a_set_too_small_for_a_step_is_refused(small_qwen35: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than the 99 prompts"):
        plan(small_config(tmp_path, small_qwen35, "rollout.prompts_per_step=99"))


@pytest.mark.parametrize("every", [1, 3, 10])
@pytest.mark.parametrize("keep", [1, 2, 9])
@pytest.mark.parametrize("keep_every", [None, 2, 6])
def test_the_checkpoints_predicted_are_those_retained(
    every: int, keep: int, keep_every: int | None, tmp_path: Path
) -> None:
    run = RunConfig(checkpoint_every=every, keep_checkpoints=keep, keep_every=keep_every)
    for step in range(1, 9):
        if step % every == 0 or step == 8:
            (tmp_path / f"step-{step:08d}").mkdir()
            retain(tmp_path, keep=keep, keep_every=keep_every)
    left = sorted(int(path.name.removeprefix("step-")) for path in tmp_path.iterdir())
    assert kept_steps(run, 8) == left


def test_a_plan_knows_what_both_forms_take(small_qwen35: Path, tmp_path: Path) -> None:
    forms = [
        plan(small_config(tmp_path, small_qwen35, f"optim.offload={form}")).memory
        for form in ("false", "true")
    ]
    resident, offload = forms
    assert resident is not None
    assert offload is not None
    state = 4 * resident.trained
    assert resident.device == offload.on_device(offload=False) == 5 * state
    assert (resident.locked, resident.on_host(offload=True)) == (0, 3 * state)
    assert offload.locked == 3 * state
    # Not mixed, so there are no casts: the moments of two pieces are on the device at once.
    assert 0 < offload.in_flight <= offload.trained + 128 * 200
    assert offload.device == resident.on_device(offload=True) == 2 * state + 8 * offload.in_flight
    assert offload.host_copy == resident.host_copy


def test_the_offloaded_state_of_the_4b_model_fits_80_gb() -> None:
    weights = 4 * 4_537_168_384
    memory = Memory(
        parameters=weights // 4, trained=weights // 4, weights=weights, casts=10_339_939_328,
        own_trained=weights // 4,
        in_flight=701_432_192, gradients=weights, adamw=2 * weights,
        teacher=weights, host_copy=4 * weights, is_offloaded=True,
    )  # fmt: skip
    assert memory.device == 2 * weights + memory.casts == pytest.approx(46.6e9, rel=1e-3)
    assert memory.on_device(offload=False) == pytest.approx(101.1e9, rel=1e-3)
    assert memory.locked == pytest.approx(54.4e9, rel=1e-3)


@pytest.mark.parametrize(
    ("form", "room", "said"),
    [
        ("false", 10**9, None),
        ("false", "between", "Set optim.offload=true: "),
        ("false", 1000, "Train adapters with lora.rank, or use a device with more memory."),
        ("true", "between", None),
        ("true", 1000, "Train adapters with lora.rank, or use a device with more memory."),
    ],
)
def test_a_plan_names_the_switch_that_makes_a_run_fit(
    form: str,
    room: int | str,
    said: str | None,
    small_qwen35: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(tmp_path, small_qwen35, f"optim.offload={form}")
    memory = plan(config).memory
    assert memory is not None
    free = memory.on_device(offload=True) if room == "between" else room
    monkeypatch.setattr(commands_plan, "_gpu_memory", lambda _: free)
    assert plan(config, gpus=2).warnings == ()  # It is a plan for other GPUs than that of this one.
    warnings = plan(config).warnings
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


def test_a_plan_names_a_host_that_is_too_small(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "free_host_memory", lambda: 1000)
    assert plan(small_config(tmp_path, small_qwen35)).warnings == ()
    (warning,) = plan(small_config(tmp_path, small_qwen35, "optim.offload=true")).warnings
    assert warning.startswith("optim.offload is true, which takes ")


@pytest.mark.parametrize(("form", "other"), [("false", "true"), ("true", "false")])
def test_the_lines_of_a_plan_show_both_forms(
    form: str, other: str, small_qwen35: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, small_qwen35, f"optim.offload={form}")
    text = "\n".join(lines(plan(config)))
    assert f"with optim.offload={other}" in text
    assert ("page-locked, and" in text) == (form == "true")


@pytest.mark.usefixtures("no_activations")
@pytest.mark.parametrize(
    ("room", "said"),
    [
        (None, None),
        (10**12, "State and micro-batch fit as configured.\n10 % of a GPU"),
        ("less", "State and micro-batch would fit with optim.offload=true.\n10 % of a GPU"),
        (1, "No combination of these settings fits, not even with smaller micro-batches. Use more"),
    ],
)
def test_a_plan_for_gpus_names_the_fewest_switches_that_make_a_run_fit(
    room: int | str | None, said: str | None, small_qwen3vl: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, small_qwen3vl)
    first = plan(config, gpus=4).fit
    assert first is not None
    offloaded = next(
        f for f in first.forms if f.offload and not (f.reshard or f.checkpointing or f.lora_rank)
    )
    assert offloaded.device < first.forms[0].device
    free = round(1.12 * offloaded.device) if room == "less" else room
    assert isinstance(free, int | None)
    planned = plan(config, gpus=4, room=free)
    assert planned.fit is not None
    assert len(planned.fit.forms) == 16
    text = "\n".join(lines(planned))
    assert "On each of 4 GPUs" in text
    assert "gathered network" in text
    assert said is None or said in text
    assert text.count("as configured") == 1 + (room == 10**12)
    # What one process would hold is another question.
    assert "device memory" not in text
    assert "device memory" in "\n".join(lines(plan(config)))
    assert ("fit" in text.partition("On each")[2]) == (room is not None)


@pytest.mark.parametrize(
    "words",
    [("--memory", "inf"), ("--memory", "nan"), ("--memory", "1e305"), ("--gpus", "1000001")],
)
def test_numbers_beyond_all_machines_are_refused(words: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["plan", "tiny", "--gpus", "2", *words])
    assert done.exit_code == 2
    assert f"Invalid value for {words[0]}" in done.stderr.replace("'", "")


def test_a_plan_for_gpus_counts_what_sampling_takes(small_qwen3vl: Path, tmp_path: Path) -> None:
    words = ("rollout.prompts_per_step=4", "rollout.prompts_per_batch=3")
    config = small_config(tmp_path, small_qwen3vl, *words)
    one, two = (plan(config, gpus=gpus).fit for gpus in (1, 2))
    assert one is not None
    assert two is not None
    assert (one.prompts, two.prompts) == (3, 2)
    form, size = one.forms[0], one.forms[0].memory
    state = size.weights + size.adamw + size.teacher + size.casts
    assert form.sampling == state + form.caches
    # One GPU samples twice: the rounded weights are there when it prefills again.
    drawn = DRAW_BYTES * 2 * config.rollout.per_prompt * 304
    assert size.rounded > 1.5 * drawn
    kept = 1.5 * (two.forms[0].caches - drawn)
    assert form.caches == pytest.approx(kept + size.rounded, rel=1e-6)
    length, _ = prompt_lengths(config)
    seen = {length(image_size(e.image), e.question) for e in load_data(config).examples}
    assert one.length == max(seen)
    text = "\n".join(lines(plan(config, gpus=1)))
    assert f"3 prompts of up to {max(seen)} tokens at a time" in text
    offloaded = next(f for f in one.forms if f.offload and f.checkpointing == form.checkpointing)
    assert offloaded.sampling == form.sampling - size.adamw - size.teacher


def test_the_lines_for_one_gpu_say_so(small_qwen3vl: Path, tmp_path: Path) -> None:
    text = "\n".join(lines(plan(small_config(tmp_path, small_qwen3vl), gpus=1, room=10**12)))
    assert "On 1 GPU of 1000.0 GB, with" in text


def fitted(config: Config, *, gpus: int, room: int) -> Fit:
    found = plan(config, gpus=gpus, room=room).fit
    assert found is not None
    return found


def test_smaller_micro_batches_are_proposed_before_adapters(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, small_qwen3vl, "optim.tokens_per_micro_batch=8192")
    forms = fitted(config, gpus=4, room=10**12).forms
    whole = [form for form in forms if not form.lora_rank]
    small = small_config(tmp_path, small_qwen3vl, "optim.tokens_per_micro_batch=2048")
    small_forms = fitted(small, gpus=4, room=10**12).forms
    smallest = min(form.device for form in small_forms if not form.lora_rank)
    assert smallest < min(form.device for form in whole)
    room = round(smallest / 0.89)
    planned = plan(config, gpus=4, room=room)
    assert planned.fit is not None
    best = planned.fit.advice[0]
    assert (best.gpus, best.lora_rank, best.tokens) == (4, 0, 2048)
    text = "\n".join(lines(planned))
    assert " optim.tokens_per_micro_batch=2048." in text
    assert "Sampling decides nothing here" in text
    assert "adapters only" not in text


def test_a_row_longer_than_a_micro_batch_is_counted_and_no_less_is_proposed(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "LEAST_TOKENS", 1)
    words = ("rollout.max_response_tokens=500", "optim.tokens_per_micro_batch={}")

    def config(tokens: int) -> Config:
        return small_config(tmp_path, small_qwen3vl, *(w.format(tokens) for w in words))

    found = fitted(config(1), gpus=1, room=10**12)
    row = found.length + 500
    assert found.forms[0].batch.tokens == row
    assert found.forms == tuple(
        replace(form, tokens=1) for form in fitted(config(row), gpus=1, room=10**12).forms
    )
    assert f"about, of {row} tokens" in "\n".join(lines(plan(config(1), gpus=1)))
    # With room for one row and not for more, no smaller limit than that row is proposed.
    whole = [form for form in found.forms if not form.lora_rank]
    room = round(min(form.device for form in whole) / 0.899)
    best = fitted(config(4 * row), gpus=1, room=room).advice[0]
    assert (best.lora_rank, best.tokens) == (0, row)
    less = fitted(config(4 * row), gpus=1, room=round(0.99 * room)).advice
    assert all(form.lora_rank for form in less)


def test_pictures_count_where_the_vision_tower_is_trained(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    kept = [
        fitted(small_config(tmp_path, small_qwen3vl, *words), gpus=1, room=10**12)
        for words in (("lora.rank=2",), ("lora.rank=2", "lora.targets=all-linear"), ())
    ]
    text, pictures, everything = (found.forms[0] for found in kept)
    assert not text.memory.trains_vision
    assert pictures.memory.trains_vision
    assert everything.memory.trains_vision
    assert text.micro_batch < pictures.micro_batch == everything.micro_batch


@pytest.mark.usefixtures("no_activations")
def test_layers_gathered_one_by_one_are_proposed_where_that_makes_a_run_fit(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    # A second model in host memory is none that is gathered.
    config = small_config(tmp_path, small_qwen3vl, "optim.offload=true")
    forms = fitted(config, gpus=4, room=10**12).forms
    layers = next(f for f in forms if f.reshard and f.offload and not f.checkpointing)
    assert layers.device < forms[0].device
    text = "\n".join(lines(plan(config, gpus=4, room=round(layers.device / 0.899))))
    assert "would fit with shard.reshard=true." in text
    text = "\n".join(lines(plan(with_reshard(config), gpus=4)))
    assert "while it samples and scores" in text
    assert "one layer of it" in text
    assert not any("reshard" in line for line in list(lines(plan(config, gpus=1)))[-9:])


def test_a_gpu_of_a_group_holds_what_one_of_so_many_does(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, small_qwen3vl, "shard.replicas=2")
    grouped = plan(config, gpus=6)
    several = plan(small_config(tmp_path, small_qwen3vl), gpus=3)
    assert grouped.fit is not None
    assert several.fit is not None
    assert [f.memory for f in grouped.fit.forms] == [f.memory for f in several.fit.forms]
    assert "On each of 6 GPUs, in 2 groups, with" in "\n".join(lines(grouped))
    with pytest.raises(ConfigError, match="does not cut 5 processes into equal groups"):
        plan(config, gpus=5)


@pytest.mark.parametrize(
    ("gpu", "capability", "hip", "triton", "way"),
    [
        (False, 0, None, True, "triton"),  # It is planned for another machine.
        (True, 9, None, True, "triton"),
        (True, 7, None, True, "chunked"),
        (True, 9, "6.4", True, "chunked"),
        (True, 9, None, False, "chunked"),
    ],
)
def test_linear_attention_is_counted_as_the_gpu_of_this_machine_computes_it(
    gpu: bool,
    capability: int,
    hip: str | None,
    triton: bool,
    way: str,
    small_qwen35: Path,
    small_qwen3vl: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_spec = fitting.importlib.util.find_spec
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(
        fitting.importlib.util,
        "find_spec",
        lambda name, *more: triton or None if name == "triton" else find_spec(name, *more),
    )
    config = small_config(tmp_path, small_qwen35)
    assert fit(config, gpus=2).linear_attention == way
    assert fit(small_config(tmp_path, small_qwen3vl), gpus=2).linear_attention is None
    reference = small_config(tmp_path, small_qwen35, "model.kernels=reference")
    assert fit(reference, gpus=2).linear_attention == "reference"


@pytest.mark.usefixtures("no_activations")
def test_vllm_has_weights_and_a_cache_of_its_own_that_must_fit(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    settings = ("rollout.engine=vllm", "rollout.engine_cache_gib=2", "model.precision=bfloat16")
    config = small_config(tmp_path, small_qwen3vl, *settings)
    (form, *_) = fitted(config, gpus=2, room=10**12).forms
    assert form.engine == 2 * 2**30 + 2 * form.memory.parameters
    assert form.device == form.sampling == form.memory.while_sampling(offload=False) + form.engine
    assert f"while it samples  {form.sampling / 1e9:>6.1f} GB, about" in said(config, 2, 10**12)
    text = "\n".join(lines(plan(config, gpus=2, room=2**30)))
    assert f"  vLLM              {form.engine / 1e9:>6.1f} GB, its weights and its cache" in text
    assert "or larger GPUs, or a smaller rollout.engine_cache_gib." in text
    assert "vLLM starts only where its weights and its cache fit" in text
    (alone, *_) = fitted(small_config(tmp_path, small_qwen3vl), gpus=2, room=10**12).forms
    assert alone.engine == 0


@pytest.mark.usefixtures("no_activations")
def test_one_group_is_proposed_where_that_makes_a_run_fit(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    settings = ("lora.rank=2", "shard.replicas=2")
    config = small_config(tmp_path, small_qwen3vl, *settings)
    several = small_config(tmp_path, small_qwen3vl, settings[0])
    # One GPU holds less than each of two, and is one group.
    room = round(fitted(several, gpus=1, room=10**12).forms[0].device / 0.899)
    assert "would fit on 1 GPU alone with shard.replicas=1." in said(config, 2, room)
    settings = ("optim.offload=true", *settings[1:])
    config = small_config(tmp_path, small_qwen3vl, *settings)
    several = small_config(tmp_path, small_qwen3vl, settings[0])
    room = round(fitted(several, gpus=16, room=10**12).forms[0].device / 0.899)
    assert "would fit with shard.replicas=1." in said(config, 16, room)
    assert "shard.replicas" not in said(several, 16, room)


def said(config: Config, gpus: int, room: int) -> str:
    return "\n".join(lines(plan(config, gpus=gpus, room=room))).partition("together")[2]


def test_moments_in_8_bits_are_counted_while_they_are_unpacked(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    memory = measure(small_config(tmp_path, small_qwen3vl, "optim.moments=8bit"))
    state = memory.weights + memory.adamw + memory.teacher + memory.gradients
    assert memory.device == state + memory.unpacked
    assert memory.unpacked == UNPACKED * memory.own_trained


def test_the_rows_of_an_offloaded_teacher_are_counted_while_it_scores(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    settings = ("shard.reshard=true", "optim.offload=true")
    memory = measure(small_config(tmp_path, small_qwen3vl, *settings), ranks=2)
    least = memory.weights + memory.casts + memory.gathered + memory.teacher
    assert memory.device >= least
    whole = replace(memory, gathered=10 * memory.gathered)
    assert whole.device == least + 9 * memory.gathered


def with_reshard(config: Config) -> Config:
    return config.model_copy(update={"shard": config.shard.model_copy(update={"reshard": True})})


@pytest.mark.usefixtures("no_activations")
def test_one_gpu_is_proposed_where_several_hold_more_each(
    small_qwen3vl: Path, tmp_path: Path
) -> None:
    config = small_config(tmp_path, small_qwen3vl, "lora.rank=2")
    alone, both = (fitted(config, gpus=count, room=10**12).forms for count in (1, 2))
    assert alone[0].device < min(form.device for form in both)
    planned = plan(config, gpus=2, room=round(alone[0].device / 0.899))
    assert planned.fit is not None
    assert [form.gpus for form in planned.fit.advice] == [1]
    assert "State and micro-batch fit on 1 GPU alone as configured." in lines(planned)


def test_a_plan_for_gpus_has_one_size_of_the_state(small_qwen3vl: Path, tmp_path: Path) -> None:
    planned = plan(small_config(tmp_path, small_qwen3vl), gpus=1)
    assert planned.fit is not None
    assert planned.memory == planned.fit.forms[0].memory


def test_the_parts_of_a_gpu_add_up(small_qwen3vl: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, small_qwen3vl)
    for each, is_whole in ((config, True), (with_reshard(config), False)):
        found = plan(each, gpus=3).fit
        assert found is not None
        form = found.forms[0]
        size = form.memory
        state = size.weights + size.gradients + size.adamw + size.teacher + size.casts
        learning = size.pass_weights + size.pass_gradients + size.exchanged
        assert form.device == state + learning + form.micro_batch
        assert (size.pass_weights == size.gathered) == is_whole
    # Weights of a phase that has no gradients yet.
    assert size.on_device(offload=False) == state + max(learning, size.gathered - size.gradients)
    assert plan(small_config(tmp_path, small_qwen3vl), gpus=1).fit.forms[0].memory.gathered == 0  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(("name", "billions"), [("4B", 4.54), ("9B", 9.41)])
def test_models_of_known_shape_are_planned_without_their_files(name: str, billions: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        size = model_size(f"Qwen/Qwen3.5-{name}", ranks=8, precision=torch.bfloat16)
    assert size.parameters == pytest.approx(billions * 1e9, rel=1e-3)
    assert size.weights == pytest.approx(size.parameters / 2, rel=1e-3)
    assert size.gathered > 2 * size.parameters


def test_more_lengths_and_more_tokens_never_keep_less(small_qwen3vl: Path, tmp_path: Path) -> None:
    """The count is of the micro-batch that keeps the most, whatever prompts come together."""

    def micro_batch(lengths: list[int], tokens: int = 600) -> int:
        config = small_config(
            tmp_path,
            small_qwen3vl,
            f"optim.tokens_per_micro_batch={tokens}",
            "rollout.prompts_per_step=6",
            "rollout.per_prompt=8",
        )
        return fit(config, gpus=1, lengths=lengths).forms[0].micro_batch

    alike = [100] * 6
    assert micro_batch([100] * 5 + [300]) >= micro_batch(alike)
    assert micro_batch([*range(50, 100), *alike]) >= micro_batch(alike)
    assert micro_batch([30] * 6 + [300] * 6) >= max(micro_batch([n] * 6) for n in (30, 300))
    by_tokens = [micro_batch(alike, tokens) for tokens in range(120, 1200, 60)]
    assert by_tokens == sorted(by_tokens)


@pytest.mark.parametrize("part_tokens", [None, 0, 60])
def test_what_real_micro_batches_keep_is_no_more_than_is_counted(
    part_tokens: int | None, small_qwen3vl: Path, tmp_path: Path
) -> None:
    draw, kept = random.Random(3), activations(small_qwen3vl, precision=torch.bfloat16)
    for _ in range(20):
        lengths = sorted(draw.randint(20, 200) for _ in range(6))
        groups = [
            PromptGroup(
                number=number,
                prompt=cast("Any", SimpleNamespace(length=length)),
                rows=tuple(range(8)),
                lengths=(40, *(draw.choice([1, 5, 40]) for _ in range(7))),
                longest=40,
            )
            for number, length in enumerate(lengths)
        ]
        tokens = draw.randint(100, 900)
        config = small_config(
            tmp_path,
            small_qwen3vl,
            f"optim.tokens_per_micro_batch={tokens}",
            "rollout.prompts_per_step=6",
            "rollout.per_prompt=8",
            "rollout.max_response_tokens=40",
            "select.policy=full",
            "select.query_ratio=1",
        )
        form = fit(config, gpus=1, lengths=lengths).forms[0]
        for batch in micro_batches(groups, tokens, part_tokens=part_tokens):
            longest = max(group.prompt.length for group in batch.groups)
            rows = [length for group in batch.groups for length in group.lengths]
            parts = [range(len(rows))]
            if part_tokens is not None:
                parts = of_like_length(rows, part_tokens)
            of_rows = sum(len(part) * max(rows[row] for row in part) for part in parts)
            images = sum(group.prompt.length for group in batch.groups)
            real = Batch(
                tokens=images + of_rows, images=images, rows=len(batch.rows), prompt=longest
            )
            assert kept.kept(real, checkpointing=form.checkpointing) <= form.micro_batch


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (("select.query_ratio=0.25",), 12),
        (("select.policy=full", "select.query_ratio=1"), 48),
        (("select.query_ratio=0.25", "select.budget=scored_tokens"), 48),
    ],
)
def test_a_micro_batch_has_no_more_rows_than_a_step_learns_from(
    settings: tuple[str, ...], rows: int, small_qwen3vl: Path, tmp_path: Path
) -> None:
    config = small_config(
        tmp_path,
        small_qwen3vl,
        "optim.tokens_per_micro_batch=9000",
        "rollout.prompts_per_step=6",
        "rollout.per_prompt=8",
        *settings,
    )
    assert fit(config, gpus=1, lengths=[30] * 6).forms[0].batch.rows == rows
