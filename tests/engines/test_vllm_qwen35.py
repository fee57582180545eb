"""Qwen3.5 in vLLM, which computes it on a CPU in bfloat16 only: most rows are the sampler's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_fixtures import SETTINGS, Beside
from run_fixtures import Silent, small_config
from run_states import step_records
from small_models import build_small_model
from stage_fixtures import make_examples, make_model
from torch import Tensor

from bas_opd.errors import ModelError
from bas_opd.rollout import vllm_engine
from bas_opd.run import loop
from bas_opd.run.checkpoint import published
from bas_opd.run.verify import verify
from bas_opd.types import PromptBatch, Rollouts

LINEAR_WIDTH = 64
"""The narrowest heads of linear attention that vLLM computes on a CPU."""
VERSIONS = 10
"""Synchronisations over which equal rows are counted."""
SHARE = 0.7
"""The least share of equal rows; docs/engines.md has what was measured."""


@pytest.fixture(scope="module", params=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(
        tmp_path_factory.mktemp("model"),
        family="qwen3_5",
        tied=request.param == "tied",
        linear_width=LINEAR_WIDTH,
    )


@pytest.fixture(scope="module")
def beside(folder: Path) -> Iterator[Beside]:
    both = Beside(make_model(folder, precision=torch.bfloat16), folder, SETTINGS)
    yield both
    both.engine.close()


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PromptBatch:
    return PromptBatch(step=3, examples=make_examples(tmp_path_factory.mktemp("pictures"), 8))


def equal_rows(drawn: Rollouts, ours: Rollouts) -> list[int]:
    """The rows whose tokens are all the same."""
    return [
        row
        for row, (one, other) in enumerate(
            zip(drawn.lengths.tolist(), ours.lengths.tolist(), strict=True)
        )
        if one == other and torch.equal(drawn.tokens[row, :one], ours.tokens[row, :one])
    ]


def apart(one: Tensor, other: Tensor, drawn: Rollouts, rows: list[int]) -> Tensor:
    """How far measurements of the tokens of rows are apart."""
    lengths = [int(drawn.lengths[row]) for row in rows]
    return torch.cat([
        (one[row, :n] - other[row, :n]).abs() for row, n in zip(rows, lengths, strict=True)
    ])  # fmt: skip


def test_over_several_versions_most_rows_are_the_samplers(
    beside: Beside, batch: PromptBatch
) -> None:
    """The printed share is the one in docs/engines.md."""
    equal = rows = 0
    logprobs, entropies = list[Tensor](), list[Tensor]()
    for step in range(VERSIONS):
        now = replace(batch, step=step)
        if step:
            beside.train()
        beside.sync()
        drawn, ours = beside.engine.generate(now), beside.sampler.generate(now)
        same = equal_rows(drawn, ours)
        equal, rows = equal + len(same), rows + len(drawn)
        assert drawn.engine is not None
        assert drawn.engine.version == beside.version
        assert 1e-4 < drawn.engine.logprob_gap < 0.06
        assert drawn.entropies is not None
        assert ours.entropies is not None
        logprobs.append(apart(drawn.logprobs, ours.logprobs, drawn, same))
        entropies.append(apart(drawn.entropies, ours.entropies, drawn, same))
    of_logprobs, of_entropies = torch.cat(logprobs), torch.cat(entropies)
    print(
        f"{equal} of {rows} rows equal; on them log-probs are {of_logprobs.mean():.3f} apart on "
        f"average and at most {of_logprobs.max():.3f}, entropies {of_entropies.mean():.4f} and "
        f"{of_entropies.max():.3f}, over {len(of_logprobs)} tokens"
    )
    assert equal >= SHARE * rows
    assert of_logprobs.mean() < 0.05
    assert of_entropies.max() < 0.1


def gap_of(beside: Beside, batch: PromptBatch) -> float:
    """How far its log-probs are from the trainer's, whatever is allowed."""
    allowed, beside.engine.tolerance = beside.engine.tolerance, float("inf")
    try:
        report = beside.engine.generate(batch).engine
    finally:
        beside.engine.tolerance = allowed
    assert report is not None
    print(f"logprob_gap {report.logprob_gap:.3f}")
    return report.logprob_gap


@pytest.mark.parametrize("old", ["visual", "layers.3.mlp.down_proj", "A_log"])
def test_what_log_probs_hardly_show_in_bfloat16_stops_the_run_too(
    old: str, beside: Beside, batch: PromptBatch
) -> None:
    """The printed distances of log-probs are those in docs/engines.md."""
    beside.sync()
    beside.train()
    with beside.keeping(old):
        with pytest.raises(ModelError, match=rf"student's weights: [\w.]*{old}"):
            beside.sync()
        beside.sync_unchecked()
    assert gap_of(beside, batch) < 2 * beside.engine.tolerance
    beside.sync()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("visual.patch_embed.proj.weight", "visual.patch_embed.proj.weight"),
        ("layers.0.mlp.up_proj.weight", "layers.0.mlp.gate_up_proj.weight"),
        ("layers.0.linear_attn.in_proj_z.weight", "layers.0.linear_attn.in_proj_qkvz.weight"),
        ("layers.3.self_attn.v_proj.weight", "layers.3.self_attn.qkv_proj.weight"),
        ("layers.1.linear_attn.conv1d.weight", "layers.1.linear_attn.conv1d.weight"),
        ("layers.1.linear_attn.A_log", "layers.1.linear_attn.A_log"),
    ],
)
def test_one_changed_value_that_does_not_arrive_stops_the_run(
    changed: str, named: str, beside: Beside
) -> None:
    beside.sync()
    (whole,) = [name for name in beside.model.trainable() if name.endswith(changed)]
    weight = beside.model.trainable()[whole]
    before = weight.detach().clone()
    with torch.no_grad():
        weight.flatten()[-1] *= 1.01  # At least one place of bfloat16.
    wrong = rf"student's weights: [\w.]*{named} is not"
    with (
        beside.loading(lambda name, weight: before if name == whole else weight),
        pytest.raises(ModelError, match=wrong),
    ):
        beside.sync()
    beside.sync()


def test_a_tied_head_that_keeps_one_old_value_stops_the_run(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "lm_head.weight" in beside.model.trainable():
        pytest.skip("Its head is loaded like any other weight.")
    beside.sync()
    monkeypatch.setattr(vllm_engine, "_pack_heads", lambda _: None)
    (weight,) = [
        weight for name, weight in beside.model.trainable().items() if "embed_tokens" in name
    ]
    with torch.no_grad():
        weight[7, 5] *= 1.01
    with pytest.raises(ModelError, match=r"weights: language_model\.lm_head\.weight is not"):
        beside.sync()


def test_weights_that_were_not_loaded_stop_the_run(beside: Beside, batch: PromptBatch) -> None:
    beside.sync()
    beside.train()
    gap_of(beside, batch)
    with pytest.raises(
        ModelError, match=r"Step 3: the log-probs of vLLM are .* from the trainer's"
    ):
        beside.engine.generate(batch)


@pytest.mark.parametrize("old", ["embed_tokens", "layers.0.linear_attn", "conv1d"])
def test_one_kind_of_weight_that_stays_old_stops_the_run(
    old: str, beside: Beside, batch: PromptBatch
) -> None:
    beside.sync()
    beside.train()
    with beside.keeping(old):
        with pytest.raises(ModelError, match=rf"student's weights: [\w.]*{old}"):
            beside.sync()
        beside.sync_unchecked()
    gap_of(beside, batch)
    with pytest.raises(ModelError, match="are not those of the student"):
        beside.engine.generate(batch)


def test_log_probs_alone_show_a_tied_head_that_keeps_its_old_weights_after_some_steps(
    beside: Beside, batch: PromptBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "lm_head.weight" in beside.model.trainable():
        pytest.skip("Its head is loaded like any other weight.")
    beside.sync()
    monkeypatch.setattr(vllm_engine, "_pack_heads", lambda _: None)

    def several_steps() -> None:
        for _ in range(8):
            beside.train()
            beside.sync_unchecked()
            gap_of(beside, batch)
            beside.engine.generate(batch)

    with pytest.raises(ModelError, match="are not those of the student"):
        several_steps()


def test_a_learned_25_run_is_verified_and_resumed(folder: Path, tmp_path: Path) -> None:
    settings = (
        "model.precision=bfloat16",
        "rollout.engine=vllm",
        "rollout.engine_cache_gib=0.25",
        "run.checkpoint_every=1",
        "run.keep_checkpoints=9",
    )
    config = small_config(tmp_path, folder, *settings)
    run = loop.train(config, Silent()).directory
    steps = step_records(run)
    assert [step["engine"]["version"] for step in steps] == [0, 1, 2, 3, 4]
    assert any(score is not None for step in steps for score in step["scores"])
    assert all(1e-4 < step["engine"]["logprob_gap"] < 0.06 for step in steps)
    assert verify(run, draws=True).is_sound
    for path in published(run / "checkpoints"):
        if path.name > "step-00000003":
            shutil.rmtree(path)
    shutil.rmtree(run / "model")
    console = Silent()
    loop.train(config, console)
    assert any("Resuming after step 3" in message for message in console.messages)
    assert any("it may draw other tokens" in message for message in console.messages)
    again = step_records(run)
    assert again[:3] == steps[:3]
    assert [step["step"] for step in again] == [0, 1, 2, 3, 4]
    assert verify(run, draws=True).is_sound
