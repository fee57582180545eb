"""The losses of GRPO and DAPO against TRL's own trainer and against recorded values of verl.

`verl_policy_loss.json` holds what verl 0.9.1 computes in float64 on the inputs that stand in it:
`compute_grpo_outcome_advantage`, `compute_policy_loss_vanilla` and `kl_penalty` (low_var_kl) of its
`trainer.ppo.core_algos`.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bas_opd.learn import (
    clipped_policy_loss,
    group_advantages,
    importance_weights,
    k3,
    overlong_penalty,
)
from bas_opd.rewards import advantages, mixed_groups

VERL: dict[str, Any] = json.loads(Path(__file__).with_name("verl_policy_loss.json").read_text())


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask_of(lengths: Any, width: int) -> Tensor:
    return torch.arange(width) < torch.as_tensor(lengths)[:, None]


@pytest.mark.parametrize("scale", ["std", "none"])
def test_advantages_equal_those_of_verl(scale: Any) -> None:
    ours = group_advantages(tensor(VERL["rewards"]), VERL["group_size"], scale=scale)
    torch.testing.assert_close(ours, tensor(VERL[f"advantages_{scale}"]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", VERL["losses"], ids=lambda c: f"{c['dual_clip']}-{c['aggregate']}")
def test_loss_and_gradient_equal_those_of_verl(case: dict[str, Any]) -> None:
    new = tensor(VERL["new"]).requires_grad_()
    settings = {k: case[k] for k in ("epsilon_low", "epsilon_high", "dual_clip", "aggregate")}
    loss = clipped_policy_loss(
        new,
        tensor(VERL["old"]),
        tensor(VERL["advantages_std"]),
        mask_of(VERL["lengths"], new.shape[1]),
        **settings,
    )
    assert loss.item() == pytest.approx(case["loss"], rel=1e-7)  # verl adds 1e-8 to row lengths
    (gradient,) = torch.autograd.grad(loss, new)
    torch.testing.assert_close(gradient, tensor(case["gradient"]), rtol=1e-7, atol=1e-12)


def test_the_recorded_cases_reach_both_clips() -> None:
    plain, dual = (c["loss"] for c in VERL["losses"] if c["epsilon_high"] == 0.28)
    assert plain != dual
    ratio = (tensor(VERL["new"]) - tensor(VERL["old"])).exp()
    assert (ratio > 1.28).any()
    assert (ratio < 0.8).any()


def test_k3_and_its_gradient_equal_those_of_verl() -> None:
    new = tensor(VERL["new"]).requires_grad_()
    found = k3(new, tensor(VERL["old"]))
    torch.testing.assert_close(found, tensor(VERL["k3"]), rtol=1e-12, atol=1e-15)
    (gradient,) = torch.autograd.grad(found.sum(), new)
    torch.testing.assert_close(gradient, tensor(VERL["k3_gradient"]), rtol=1e-12, atol=1e-15)
    assert bool((found >= 0).all())


def trl_loss(kind: str, new: Tensor, batch: dict[str, Tensor], **settings: Any) -> Tensor:
    """TRL's loss, with log-probs in place of a model's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_trainer import GRPOTrainer
    rows, width = new.shape
    args = {"use_bias_correction_kl": False, "delta": settings.get("delta")}
    accelerator = SimpleNamespace(
        gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1, sync_gradients=True
    )
    stub = SimpleNamespace(
        args=SimpleNamespace(**args, steps_per_generation=1),
        accelerator=accelerator,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=settings.get("beta", 0.0),
        epsilon_low=settings["low"],
        epsilon_high=settings["high"],
        loss_type=kind,
        use_vllm="importance_sampling_ratio" in batch,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, new.detach(), None),
    )
    ids = torch.zeros(rows, width, dtype=torch.long)
    inputs = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, **batch}
    compute: Any = GRPOTrainer._compute_loss
    return compute(stub, None, inputs)


@pytest.mark.parametrize(("kind", "aggregate"), [("grpo", "sequence"), ("bnpo", "token")])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("is_first", [True, False])
def test_loss_and_gradient_equal_those_of_trl(
    kind: str, aggregate: Any, beta: float, is_first: bool
) -> None:
    torch.manual_seed(5)
    rows, width = 8, 6
    lengths = torch.tensor([6, 1, 3, 6, 2, 5, 4, 6])
    mask = mask_of(lengths, width)
    mask[3] = mask[3] if aggregate == "sequence" else False  # a row that was cut and is left out
    old = -3 * torch.rand(rows, width, dtype=torch.float64)
    start = old if is_first else old + 0.5 * torch.randn(rows, width, dtype=torch.float64)
    reference = old + 0.3 * torch.randn(rows, width, dtype=torch.float64)
    a = group_advantages(torch.tensor([1, 0, 0, 1, 0, 1, 1, 1]), 4)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    loss = clipped_policy_loss(
        ours,
        ours.detach() if is_first else old,
        a,
        mask,
        epsilon_low=0.2,
        epsilon_high=0.28,
        aggregate=aggregate,
    )
    if beta:
        m = mask.double()
        weights = m / m.sum() if aggregate == "token" else m / m.sum(1, keepdim=True) / rows
        loss = loss + beta * (k3(ours, reference) * weights).sum()
    batch = {"completion_mask": mask.double(), "advantages": a, "ref_per_token_logps": reference}
    if not is_first:
        batch["old_per_token_logps"] = old
    expected = trl_loss(kind, theirs, batch, low=0.2, high=0.28, beta=beta)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss, ours)
    torch.testing.assert_close(
        gradient, *torch.autograd.grad(expected, theirs), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(("kind", "aggregate"), [("grpo", "sequence"), ("bnpo", "token")])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_importance_weights_stand_where_trl_puts_them(
    kind: str, aggregate: Any, beta: float
) -> None:
    """On the policy's term and not on the KL, from the log-probs before the first update."""
    torch.manual_seed(7)
    mask = mask_of(torch.tensor([6, 1, 3, 6]), 6)
    old = -3 * torch.rand(4, 6, dtype=torch.float64)
    sampled = old + 0.5 * torch.randn(4, 6, dtype=torch.float64)
    reference = old + 0.3 * torch.randn(4, 6, dtype=torch.float64)
    start = old + 0.3 * torch.randn(4, 6, dtype=torch.float64)
    a = group_advantages(torch.tensor([1, 0, 0, 1]), 4)
    # token_truncate of TRL's _generate_and_score_completions, line for line
    ratio = torch.clamp(torch.exp((old - sampled) * mask), min=None, max=2.0)
    weights = importance_weights(old, sampled, cap=2.0)
    torch.testing.assert_close(weights[mask], ratio[mask], rtol=1e-12, atol=0)
    assert (weights == 2.0).any()
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    loss = clipped_policy_loss(
        ours,
        old,
        a,
        mask,
        epsilon_low=0.2,
        epsilon_high=0.28,
        aggregate=aggregate,
        importance=weights,
    )
    if beta:
        m = mask.double()
        share = m / m.sum() if aggregate == "token" else m / m.sum(1, keepdim=True) / 4
        loss = loss + beta * (k3(ours, reference) * share).sum()
    batch = {
        "completion_mask": mask.double(),
        "advantages": a,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "importance_sampling_ratio": ratio,
    }
    expected = trl_loss(kind, theirs, batch, low=0.2, high=0.28, beta=beta)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss, ours)
    torch.testing.assert_close(
        gradient, *torch.autograd.grad(expected, theirs), rtol=1e-9, atol=1e-12
    )


def test_the_dual_clip_equals_trls_two_sided_clipping() -> None:
    torch.manual_seed(6)
    old = -3 * torch.rand(4, 5, dtype=torch.float64)
    new = old + 2 * torch.randn(4, 5, dtype=torch.float64)
    mask, a = torch.ones(4, 5), group_advantages(torch.tensor([1, 0, 0, 1]), 4)
    ours = clipped_policy_loss(new, old, a, mask, epsilon_low=0.2, epsilon_high=0.28, dual_clip=3.0)
    batch = {"completion_mask": mask.double(), "advantages": a, "old_per_token_logps": old}
    theirs = trl_loss("bnpo", new, batch, low=0.2, high=0.28, delta=3.0)
    torch.testing.assert_close(ours, theirs)
    plain = clipped_policy_loss(new, old, a, mask, epsilon_low=0.2, epsilon_high=0.28)
    assert not torch.allclose(ours, plain)


@pytest.mark.parametrize("cache", [0, 1, 205, 1024])
def test_the_overlong_penalty_equals_that_of_trl(cache: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.rewards.other_rewards import get_soft_overlong_punishment
    lengths = [1, 500, 818, 819, 820, 900, 1023, 1024, 1025]
    theirs = get_soft_overlong_punishment(1024, cache)([[0] * n for n in lengths])
    ours = overlong_penalty(torch.tensor(lengths), limit=1024, cache=cache)
    assert ours.tolist() == pytest.approx(theirs)
    assert max(ours.tolist()) <= 0


@pytest.mark.parametrize("reward", [0.1, 0.7, 1.0, 1 / 3])
@pytest.mark.parametrize("scale", ["std", "none"])
def test_equal_rewards_have_an_advantage_of_exactly_zero(reward: float, scale: Any) -> None:
    for dtype in (torch.float32, torch.float64):
        found = group_advantages(torch.full((8,), reward, dtype=dtype), 8, scale=scale)
        assert found.tolist() == [0.0] * 8


def test_a_reward_of_minus_one_changes_advantages_only_beside_a_penalty() -> None:
    """DAPO's paper rewards +1 and -1, the trainer 1 and 0."""
    right = [True, False, False, True, True, True, False, True]
    ours, theirs = [float(r) for r in right], [2.0 * r - 1 for r in right]
    assert advantages(ours, 8) == pytest.approx(advantages(theirs, 8), rel=1e-5)
    penalised = [0.0] * 7 + [-1.0]
    with_penalty, paper = (
        advantages([r + p for r, p in zip(each, penalised, strict=True)], 8)
        for each in (ours, theirs)
    )
    twice = advantages([r + 2 * p for r, p in zip(theirs, penalised, strict=True)], 8)
    assert with_penalty != pytest.approx(paper, rel=0.1)
    assert with_penalty == pytest.approx(twice, rel=1e-5)


def test_advantages_belong_to_their_group() -> None:
    assert advantages([1, 0, 5, 5], 2, scale="none") == [0.5, -0.5, 0.0, 0.0]
    assert mixed_groups([True, False, True, True, False, False], 2) == [0]
    with pytest.raises(ValueError, match="groups of 3"):
        advantages([1, 0, 5, 5], 3)


def test_what_stands_in_the_padding_changes_neither_loss_nor_gradient() -> None:
    logprobs = torch.tensor([[-1.0, torch.nan], [-2.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.2, -torch.inf], [-1.8, -1.0]])
    mask = torch.tensor([[1, 0], [1, 1]])
    advantage = torch.tensor([1.0, -1.0])
    loss = clipped_policy_loss(logprobs, old, advantage, mask, epsilon_low=0.2, epsilon_high=0.28)
    loss.backward()
    assert loss.isfinite()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[0, 1] == 0


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((2, 3), (2, 3), (2, 3), (2, 3)), "advantages have the shape .2, 3.; give one for each"),
        (((2, 3), (2, 3), (2, 1), (2, 3)), "give one for each of the 2 rows"),
        (((2, 3), (2, 1), (2,), (2, 3)), "old_logprobs .2, 1."),
        (((2, 3), (2, 3), (2,), (3,)), "mask .3,.; give all as .row, token."),
    ],
)
def test_shapes_that_would_be_stretched_silently_are_refused(shapes: Any, says: str) -> None:
    given = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=says):
        clipped_policy_loss(*given, epsilon_low=0.2, epsilon_high=0.2)  # type: ignore[call-arg]
