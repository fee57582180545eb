"""Settings reach the stages that use them, and the stages each other, as Algorithm 1 has it."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from stage_fixtures import crop_teacher, draw, make_examples, make_model
from torch import nn

from bas_opd.algorithm import Stages, train_step
from bas_opd.compute.clock import Clock
from bas_opd.config import load_config
from bas_opd.data.order import PromptStream
from bas_opd.distill import query_utility, topk_divergence
from bas_opd.distill.loss import DistillSettings
from bas_opd.distill.utility import teacher_confidence
from bas_opd.learn import Distillation, Learner, OptimizerSettings, PackedRows
from bas_opd.learn.offloaded import OffloadedAdamW
from bas_opd.model.batches import PromptGroup, micro_batches, of_like_length
from bas_opd.rollout.draws import race_noise, row_keys
from bas_opd.run.state import TrainState, build_method
from bas_opd.select import RandomSelector
from bas_opd.types import Crop, Example, FullLogits, Prompt, PromptBatch, Rollouts, StudentUpdate

TINY = Path(__file__).parents[2] / "configs" / "tiny.toml"


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_step_follows_only_a_valid_update_and_tells_everyone_its_number(is_valid: bool) -> None:
    example = Example(id="e", image=Path("e.png"), question="?", crop=Crop(area=0.5))
    prompt = Prompt(
        input_ids=torch.zeros(3).long(), pixel_values=torch.zeros(0), grid=torch.zeros(0)
    )
    rollouts = Rollouts(
        step=7,
        examples=(example,),
        prompts=(prompt,),
        per_prompt=4,
        tokens=torch.zeros(4, 2).long(),
        lengths=torch.tensor([1, 2, 1, 2]),
        logprobs=-torch.ones(4, 2),
        entropies=torch.ones(4, 2),
    )
    calls: list[Any] = []

    class Selector(RandomSelector):
        def select(self, candidates: Any, budget: Any, *, step: int) -> Any:
            calls.append(("select", budget.limit, step))
            return super().select(candidates, budget, step=step)

        def learn(self, candidates: Any, utility: Any, *, step: int) -> bool:
            calls.append(("learn", candidates.rows, dict(utility), step))
            return False

    utility = {1: 0.5}
    update = StudentUpdate(
        loss=1.0,
        gradient_norm=1.0,
        learning_rate=1.0,
        is_valid=is_valid,
        observed=utility,
        dropped=0,
        processed_tokens=0,
    )
    stages: Any = Stages(
        policy=SimpleNamespace(generate=lambda _: rollouts),  # type: ignore[arg-type]
        selector=Selector(),
        teacher=SimpleNamespace(  # type: ignore[arg-type]
            score=lambda _, rows: (calls.append(("score", rows)), SimpleNamespace(rows=rows))[1],
            follow=lambda: calls.append("follow"),
        ),
        learner=SimpleNamespace(update=lambda *_: (calls.append("update"), update)[1]),  # type: ignore[arg-type]
        objective=lambda _: None,  # type: ignore[arg-type, return-value]
        clock=Clock(torch.device("cpu")),
    )
    report = train_step(stages, PromptBatch(step=7, examples=(example,)), Decimal("0.5"))
    assert calls == [
        ("select", 2, 7),
        ("score", report.rows),
        "update",
        *(["follow"] if is_valid else []),
        ("learn", (0, 1, 2, 3), utility, 7),
    ]


def test_every_setting_reaches_its_stage(small_qwen35: Path, tmp_path: Path) -> None:
    config = load_config(TINY, [
        f"model.path={small_qwen35}", f"data.path={tmp_path}", "run.seed=7",
        "model.precision=bfloat16", "model.thinking=true", "model.max_pixels=200000",
        "model.gradient_checkpointing=true", "optim.share_prompts=false",
        "rollout.temperature=0.7", "rollout.top_p=0.9", "rollout.prompts_per_batch=3",
        "select.exploration=0.3", "select.momentum=0.5", "select.rank_weight=0", "select.seed=5",
        "distill.alpha=0.25", "distill.support=renormalise", "distill.use_confidence=false",
        "teacher.mode=frozen", "teacher.tau=0.2", "teacher.tokens_per_batch=99",
        "optim.weight_decay=0.3", "optim.gradient_clip=0.5", "optim.learning_rate=0.125",
        "optim.offload=true",
    ])  # fmt: skip
    method: Any = build_method(config)
    stages, model = method.stages, method.model
    assert model.precision is torch.bfloat16
    assert model.processor.thinking
    assert model.processor.images.size["longest_edge"] == 200000
    assert any(
        isinstance(m.forward, MethodType) and "forward" in vars(m) for m in model.network.modules()
    )
    sampling = stages.policy.settings
    assert (sampling.seed, sampling.temperature, sampling.top_p) == (7, 0.7, 0.9)
    assert (sampling.prompts_per_batch, sampling.per_prompt) == (3, 4)
    assert (stages.teacher.mode, stages.teacher.tau, stages.teacher.tokens_per_batch) == (
        "frozen", 0.2, 99,
    )  # fmt: skip
    assert stages.learner.settings == OptimizerSettings(**config.optim.model_dump())
    assert stages.objective(None).settings == DistillSettings(**config.distill.model_dump())
    assert method.query_ratio == config.select.query_ratio
    assert type(stages.learner.optimizer) is OffloadedAdamW
    assert stages.teacher.weights._host is not None
    (group,) = stages.learner.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.125, 0.3)
    selector = stages.selector
    assert (float(selector.exploration), selector.rank_weight, selector.seed) == (0.3, 0, 5)
    assert selector.normaliser.momentum == 0.5


@pytest.mark.parametrize("change", [
    {"alpha": 0.2}, {"alpha": 0.0}, {"alpha": 1.0}, {"support": "renormalise"},
    {"use_confidence": False}, {"use_overlap": False}, {"k": 3}, {"k": 99},
])  # fmt: skip
def test_chunks_obey_every_setting(change: dict[str, Any]) -> None:
    torch.manual_seed(0)
    settings = replace(DistillSettings(k=5, tokens_per_chunk=2), **change)
    student, teacher = nn.Linear(4, 11), nn.Linear(4, 11)
    hidden, crop = torch.randn(7, 4, requires_grad=True), torch.randn(7, 4)
    scores: Any = SimpleNamespace(
        scored_tokens=9,
        chunks=lambda _, size: (FullLogits(teacher(part)) for part in crop.split(size)),
    )
    packed = PackedRows(
        rows=(3,), lengths=(7,), tokens=torch.zeros(7).long(), sampled=torch.zeros(7)
    )
    part = Distillation(scores, student, settings)(hidden, packed)
    loss, utility = part.loss, part.observed
    assert utility is not None
    ours, hidden.grad = hidden.grad, None
    s, t = student(hidden)[None], teacher(crop)[None]
    whole = topk_divergence(s, t, k=settings.k, alpha=settings.alpha, support=settings.support)
    (whole.sum() / 9).backward()
    assert float(loss) == pytest.approx(float(whole.sum().detach()) / 9, rel=1e-5)
    torch.testing.assert_close(ours, hidden.grad)
    expected = query_utility(
        s, t, torch.ones(1, 7), k=settings.k,
        use_overlap=settings.use_overlap, use_confidence=settings.use_confidence,
    )  # fmt: skip
    assert float(utility) == pytest.approx(float(expected), rel=1e-5)


def test_neighbouring_positions_do_not_share_shifted_noise() -> None:
    key = row_keys(7, 0, torch.tensor([0]), torch.tensor([0]))
    here, there = (race_noise(key, torch.tensor([p]), 30) for p in (0, 1))
    for shift in range(1, 5):
        assert not torch.isclose(here[:, shift:], there[:, :-shift]).any()
        assert not torch.isclose(here[:, :-shift], there[:, shift:]).any()


@pytest.fixture
def setting(small_qwen35: Path, tmp_path: Path) -> Any:
    model = make_model(small_qwen35)
    teacher = crop_teacher(model)
    generator = torch.Generator().manual_seed(2)
    for weight in teacher.weights.state_dict().values():
        weight += 0.1 * torch.randn(weight.shape, generator=generator)
    rollouts = draw(model, make_examples(tmp_path))
    rows = (0, 1, 4, 5, 8)
    return SimpleNamespace(
        model=model,
        rollouts=rollouts,
        rows=rows,
        objective=Distillation(teacher.score(rollouts, rows), model.logits, DistillSettings(k=20)),
    )


def learner_of(setting: Any, **options: Any) -> Learner:
    return Learner(setting.model, OptimizerSettings(**options))


def test_the_optimizer_gets_a_clipped_gradient_and_decays_weights(
    setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(setting, gradient_clip=1e-4, weight_decay=0.3)
    assert learner.optimizer.param_groups[0]["weight_decay"] == 0.3
    seen: list[float] = []
    monkeypatch.setattr(
        learner.optimizer,
        "step",
        lambda: seen.append(
            math.hypot(*(float(p.grad.norm()) for p in learner.parameters if p.grad is not None))
        ),
    )
    update = learner.update(setting.rollouts, setting.rows, setting.objective)
    assert update.gradient_norm > 1e-3
    assert seen == [pytest.approx(1e-4, rel=1e-2)]


def test_memory_that_runs_out_half_way_leaves_no_half_gradient(
    setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def norm() -> float:
        grads = [p.grad for p in setting.model.trainable().values() if p.grad is not None]
        return math.hypot(*(float(g.norm()) for g in grads))

    learner_of(setting, tokens_per_micro_batch=1).accumulate(
        setting.rollouts, setting.rows, setting.objective
    )
    expected = norm()
    setting.model.network.zero_grad()
    learner = learner_of(setting, tokens_per_micro_batch=120)
    backward, calls = Learner._micro_batch, []

    def once(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        return backward(*args)

    monkeypatch.setattr(Learner, "_micro_batch", once)
    learner.accumulate(setting.rollouts, setting.rows, setting.objective)
    assert len(calls) > 3
    assert norm() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("part_tokens", [None, 0, 10])
@pytest.mark.parametrize("limit", [1, 30, 64, 80, 200])
def test_no_micro_batch_exceeds_its_limit_unless_it_is_one_row(
    share: bool, part_tokens: int | None, limit: int
) -> None:
    def group(number: int, length: int, rows: int, longest: int) -> PromptGroup:
        prompt = Prompt(
            input_ids=torch.zeros(length).long(), pixel_values=torch.zeros(0), grid=torch.zeros(0)
        )
        first = number * 8
        return PromptGroup(
            number=number,
            prompt=prompt,
            rows=tuple(range(first, first + rows)),
            lengths=tuple(max(1, longest - 3 * row) for row in range(rows)),
            longest=longest,
        )

    groups = [group(0, 40, 8, 5), group(1, 10, 3, 9), group(2, 25, 1, 20), group(3, 10, 5, 2)]
    batches = list(micro_batches(groups, limit, share_prompts=share, part_tokens=part_tokens))
    for batch in batches:
        lengths = [length for g in batch.groups for length in g.lengths]
        parts = [lengths]
        if part_tokens is not None and share:
            found = of_like_length(lengths, part_tokens)
            parts = [[lengths[row] for row in part] for part in found]
        copies = len(batch.groups) if share else len(batch.rows)
        padded = copies * max(p.length for p in batch.prompts)
        padded += sum(len(part) * max(part) for part in parts)
        assert padded <= limit or len(batch.rows) == 1
        assert len({g.number for g in batch.groups}) == len(batch.groups) or not share
    known = {row: (g.number, n) for g in groups for row, n in zip(g.rows, g.lengths, strict=True)}
    assert known == {
        row: (g.number, n)
        for batch in batches
        for g in batch.groups
        for row, n in zip(g.rows, g.lengths, strict=True)
    }
    assert sum(len(batch.rows) for batch in batches) == len(known)
    lengths = [p.length for batch in batches for p in batch.prompts]
    assert lengths == sorted(lengths)


def test_rows_that_are_padded_in_parts_need_fewer_micro_batches() -> None:
    prompt = Prompt(
        input_ids=torch.zeros(10).long(), pixel_values=torch.zeros(0), grid=torch.zeros(0)
    )
    groups = [
        PromptGroup(number=number, prompt=prompt, rows=(number,), lengths=(length,), longest=length)
        for number, length in enumerate([100, *[5] * 9])
    ]
    found = {parts: list(micro_batches(groups, 245, part_tokens=parts)) for parts in (None, 20)}
    assert [len(batches) for batches in found.values()] == [2, 1]


@pytest.mark.parametrize("part_tokens", [None, 20])
def test_rows_with_prompts_of_their_own_come_together(part_tokens: int | None) -> None:
    prompt = Prompt(
        input_ids=torch.zeros(10).long(), pixel_values=torch.zeros(0), grid=torch.zeros(0)
    )
    group = PromptGroup(
        number=0, prompt=prompt, rows=tuple(range(8)), lengths=(5,) * 7 + (9,), longest=9
    )
    batches = micro_batches([group], 80, share_prompts=False, part_tokens=part_tokens)
    assert [len(batch.rows) for batch in batches] == [4, 4]


def test_pieces_of_a_prompt_are_full_and_in_batches_of_their_own() -> None:
    prompt = Prompt(
        input_ids=torch.zeros(10).long(), pixel_values=torch.zeros(0), grid=torch.zeros(0)
    )
    lengths = (100, *[5] * 7)
    group = PromptGroup(number=0, prompt=prompt, rows=tuple(range(8)), lengths=lengths, longest=100)
    (whole,) = micro_batches([group], 230, part_tokens=20)
    assert sorted(whole.rows) == list(range(8))
    batches = micro_batches([group], 140, part_tokens=20)
    assert [sorted(batch.rows) for batch in batches] == [[1, 2, 3, 4, 5, 6, 7], [0]]


def test_two_pieces_of_a_prompt_are_in_two_batches_though_they_would_fit_into_one() -> None:
    """With a row more, another split may pad less. The prompt would be computed twice there."""
    prompt = Prompt(
        input_ids=torch.zeros(10).long(), pixel_values=torch.zeros(0), grid=torch.zeros(0)
    )
    lengths = (*[5] * 8, 10, 10, 11, 90)
    group = PromptGroup(number=0, prompt=prompt, rows=tuple(range(12)), lengths=lengths, longest=90)
    batches = micro_batches([group], 105, part_tokens=45)
    found = [[lengths[row] for row in batch.rows] for batch in batches]
    assert found == [[*[5] * 8, 10], [10, 11], [90]]


def test_a_captured_state_no_longer_changes(small_qwen35: Path, tmp_path: Path) -> None:
    config = load_config(TINY, [f"model.path={small_qwen35}", f"data.path={tmp_path}"])
    method = build_method(config)
    state = TrainState(method=method, prompts=PromptStream((), per_step=1, seed=0))
    snapshot = state.capture()
    live = {part: method.parts()[part].state_dict() for part in ("student", "teacher")}
    with torch.no_grad():
        for tensors in live.values():
            for tensor in tensors.values():
                tensor += 1
    for part, tensors in live.items():
        for name, tensor in snapshot.tensors[part].items():
            torch.testing.assert_close(tensor + 1, tensors[name].detach())


@pytest.mark.parametrize("support", ["tail", "renormalise"])
def test_bf16_logits_are_compared_in_fp32(support: Any) -> None:
    torch.manual_seed(0)
    s, t = (torch.randn(2, 3, 40).bfloat16() for _ in range(2))
    ours = topk_divergence(s, t, k=8, alpha=0.5, support=support)
    assert ours.dtype is torch.float32
    assert torch.equal(ours, topk_divergence(s.float(), t.float(), k=8, alpha=0.5, support=support))


def test_confidence_is_one_at_k_one() -> None:
    assert torch.equal(teacher_confidence(torch.zeros(2, 3, 1)), torch.ones(2, 3))


def test_extending_in_two_parts_is_extending_once(small_qwen35: Path, tmp_path: Path) -> None:
    from bas_opd.data.images import open_image

    model = make_model(small_qwen35)
    example = make_examples(tmp_path)[0]
    prompt = model.processor.encode(open_image(example.image), example.question)
    tokens = torch.tensor([[5, 9, 20, 31, 8, 3]])
    with torch.no_grad():
        whole, _ = model.extend(model.prefill([prompt]), tokens)
        _, part = model.extend(model.prefill([prompt]), tokens[:, :3])
        rest, end = model.extend(part, tokens[:, 3:])
    torch.testing.assert_close(rest, whole[:, 3:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(end.last_hidden, whole[:, -1], atol=1e-5, rtol=1e-4)


def test_teacher_and_learner_can_be_stopped_at_every_batch(setting: Any) -> None:
    from bas_opd.types import Hooks

    polls: list[int] = []
    hooks = Hooks(poll=lambda: polls.append(1))
    teacher = crop_teacher(setting.model, tokens_per_batch=1, hooks=hooks)
    teacher.score(setting.rollouts, setting.rows)
    assert len(polls) == len(setting.rows)
    learner = Learner(setting.model, OptimizerSettings(tokens_per_micro_batch=1), hooks)
    learner.accumulate(setting.rollouts, setting.rows, setting.objective)
    assert len(polls) == 2 * len(setting.rows)


@pytest.mark.parametrize(
    "name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
)
def test_both_recurrences_run_outside_autocast(name: str) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5

    from bas_opd.model.precision import keep_recurrences_in_fp32

    keep_recurrences_in_fp32()
    assert getattr(getattr(modeling_qwen3_5, name), "runs_outside_autocast", False)
