"""The compact student pass against plain forward passes over all rows with a masked loss."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from stage_fixtures import crop_teacher, draw, make_examples, make_model
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_layers import GradientCheckpointingLayer

from bas_opd.data.images import open_crop, open_image
from bas_opd.distill import distillation_loss, query_utility, topk_divergence
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import (
    ClippedPolicy,
    ClipSettings,
    Distillation,
    Learner,
    Likelihood,
    Objective,
    OptimizerSettings,
    TokenLogprobs,
    clipped_policy_loss,
    k3,
    token_weights,
)
from bas_opd.model.loading import LoraSettings
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Example, TeacherScores

FAMILIES = ["small_qwen35", "small_qwen3vl", "small_qwen25vl"]
SETTINGS = DistillSettings(k=20, tokens_per_chunk=7)
SELECTED = (1, 5, 4, 8, 0)
Found = tuple[float, dict[int, float], dict[str, Tensor]]


class Case:
    """A model that has moved away from its teacher, and rollouts it drew."""

    def __init__(self, folder: Path, pictures: Path, **options: object) -> None:
        self.model = make_model(folder, **options)  # type: ignore[arg-type]
        self.teacher = crop_teacher(self.model)
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in self.teacher.weights.state_dict().values():
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
        self.rollouts = draw(self.model, make_examples(pictures))

    def learner(self, **optimizer: object) -> Learner:
        return Learner(self.model, OptimizerSettings(**optimizer))  # type: ignore[arg-type]

    def objective(self, teacher: TeacherScores, settings: DistillSettings = SETTINGS) -> Objective:
        return Distillation(teacher, self.model.logits, settings)

    def scored(self, rows: Sequence[int]) -> Objective:
        """Return the objective against the teacher's scores of some rows."""
        return self.objective(self.teacher.score(self.rollouts, rows))

    def gradients(
        self, rows: Sequence[int], **optimizer: object
    ) -> tuple[float, dict[int, float], dict[str, Tensor]]:
        """Return loss, utilities and gradients as the product computes them."""
        self.model.network.zero_grad()
        found = self.learner(**optimizer).accumulate(self.rollouts, rows, self.scored(rows))
        return float(found.loss), found.observed, _gradients(self.model)

    def plain(self, rows: Sequence[int]) -> tuple[float, dict[int, float], dict[str, Tensor]]:
        """Return the same from whole padded rows of all rollouts, the unselected masked out."""
        teacher = copy.deepcopy(self.model.network)
        weights = self.teacher.weights.state_dict()
        with torch.no_grad():
            for name, parameter in teacher.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])
            crop_logits = _row_logits(self, teacher, lambda e: open_crop(e) if e.crop else None)
        self.model.network.zero_grad()
        logits = _row_logits(self, self.model.network, lambda e: open_image(e.image))
        chosen = torch.zeros(len(self.rollouts), 1, dtype=torch.bool)
        chosen[list(rows)] = True
        mask = self.rollouts.mask & chosen
        divergence = topk_divergence(logits, crop_logits, k=20, alpha=0.5, support="tail")
        loss = distillation_loss(divergence, mask)
        loss.backward()
        utility = query_utility(logits, crop_logits, self.rollouts.mask, k=20)
        return float(loss.detach()), {r: float(utility[r]) for r in rows}, _gradients(self.model)


def _row_logits(case: Case, network: torch.nn.Module, view: Callable[[Example], object]) -> Tensor:
    """Run every row by itself through transformers, and stack what predicts its response."""
    rollouts, processor = case.rollouts, case.model.processor
    stacked = []
    for row in range(len(rollouts)):
        example = rollouts.example_of(row)
        image = view(example) or open_image(example.image)
        prompt = processor.encode(image, example.question)  # type: ignore[arg-type]
        ids = torch.cat([prompt.input_ids, rollouts.tokens[row]])[None]
        logits = network(
            input_ids=ids,
            pixel_values=prompt.pixel_values,
            image_grid_thw=prompt.grid,
            mm_token_type_ids=processor.mm_token_type_ids(ids),
        ).logits[0]
        stacked.append(logits[prompt.length - 1 : -1])
    return torch.stack(stacked)


def _gradients(model: VisionLanguageModel) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.trainable().items() if p.grad is not None}


def assert_equal_gradients(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> None:
    """Require 1e-5 of the whole gradient, and of each parameter what rounding leaves it."""
    assert ours.keys() == reference.keys()
    norms = {name: float(gradient.norm()) for name, gradient in reference.items()}
    errors = {name: float((ours[name] - reference[name]).norm()) for name in reference}
    assert math.hypot(*errors.values()) <= 1e-5 * math.hypot(*norms.values())
    # A gradient that is rounding itself (a bias that attention cancels) is measured by the others.
    floor = 1e-4 * max(norms.values())
    for name, error in errors.items():
        # The recurrence of Qwen3.5 rounds differently in chunks that start elsewhere.
        tolerance = 1e-3 if name.endswith(("A_log", "dt_bias")) else 3e-5
        assert error <= tolerance * max(norms[name], floor), name


@pytest.fixture(params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.getfixturevalue(request.param), tmp_path)


@pytest.fixture
def qwen35(small_qwen35: Path, tmp_path: Path) -> Case:
    return Case(small_qwen35, tmp_path)


def test_the_compact_pass_has_the_gradients_of_all_rows_with_the_loss_masked(case: Case) -> None:
    loss, utility, gradients = case.gradients(SELECTED)
    plain_loss, plain_utility, plain_gradients = case.plain(SELECTED)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert utility == pytest.approx(plain_utility, rel=1e-4, abs=1e-9)
    assert_equal_gradients(gradients, plain_gradients)


def test_at_full_budget_it_is_plain_distillation_with_a_token_mean(case: Case) -> None:
    rows = case.rollouts.candidates()
    loss, _, gradients = case.gradients(rows)
    plain_loss, _, plain_gradients = case.plain(rows)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert_equal_gradients(gradients, plain_gradients)


def test_likelihood_equals_the_causal_loss_of_transformers(case: Case) -> None:
    rollouts, rows = case.rollouts, list(SELECTED)
    n = int(rollouts.lengths[rows].sum())
    objective = Likelihood(head=case.model.logits, tokens=n, chunk=7)
    found = case.learner(tokens_per_micro_batch=40).accumulate(rollouts, rows, objective)
    ours = _gradients(case.model)

    case.model.network.zero_grad()
    logits = _row_logits(case, case.model.network, lambda e: open_image(e.image))
    chosen = torch.zeros(len(rollouts), 1, dtype=torch.bool)
    chosen[rows] = True
    labels = rollouts.tokens.masked_fill(~(rollouts.mask & chosen), -100)
    loss = ForCausalLMLoss(
        logits, labels, logits.shape[-1], num_items_in_batch=torch.tensor(n), shift_labels=labels
    )
    loss.backward()
    assert float(found.loss) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert_equal_gradients(ours, _gradients(case.model))


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_the_policy_objective_equals_the_loss_that_equals_trls(
    qwen35: Case, aggregate: Literal["token", "sequence"]
) -> None:
    rollouts, beta = qwen35.rollouts, 0.04
    everything = range(len(rollouts))
    generator = torch.Generator().manual_seed(5)

    def apart() -> Tensor:
        return rollouts.logprobs + 0.4 * torch.randn(rollouts.logprobs.shape, generator=generator)

    old, reference = apart(), apart()
    advantages = torch.randn(len(rollouts), generator=generator)
    weights = token_weights(rollouts.lengths, aggregate)
    logprobs = TokenLogprobs(suppressed=tuple(qwen35.model.processor.suppressed_ids))

    def by_row(values: Tensor) -> dict[int, Tensor]:
        return {row: values[row, : rollouts.lengths[row]] for row in everything}

    objective = ClippedPolicy(
        head=qwen35.model.logits,
        logprobs=logprobs,
        settings=ClipSettings(clip_high=0.28, dual_clip=3.0, beta=beta, aggregate=aggregate),
        advantages=dict(enumerate(advantages.tolist())),
        weights=dict(enumerate(weights.tolist())),
        old=by_row(old),
        reference=by_row(reference),
        chunk=7,
    )
    learner = qwen35.learner(tokens_per_micro_batch=40)
    found = learner.accumulate(rollouts, list(everything), objective)
    ours = _gradients(qwen35.model)

    qwen35.model.network.zero_grad()
    logits = _row_logits(qwen35, qwen35.model.network, lambda e: open_image(e.image))
    new = torch.stack(
        [logprobs(each, rollouts.tokens[row]) for row, each in enumerate(logits)]
    ).masked_fill(~rollouts.mask, 0.0)
    loss = clipped_policy_loss(
        new,
        old,
        advantages,
        rollouts.mask,
        epsilon_low=0.2,
        epsilon_high=0.28,
        dual_clip=3.0,
        aggregate=aggregate,
    )
    distance = k3(new, reference).masked_fill(~rollouts.mask, 0.0)
    loss = loss + beta * (distance * weights[:, None]).sum()
    loss.backward()
    gradient = _gradient_by_ratio(new.detach(), old, advantages)
    stopped = ((gradient == 0) & rollouts.mask).sum(1).tolist()
    assert 0 < sum(stopped) < int(rollouts.mask.sum())
    for row, (total, clipped) in objective.measured.items():
        assert total == pytest.approx(float(distance[row].detach().sum()), rel=1e-3, abs=1e-5)
        assert clipped == stopped[row]
    assert float(found.loss) == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-6)
    assert_equal_gradients(ours, _gradients(qwen35.model))


def _gradient_by_ratio(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """What clipping leaves of the gradient of each token by its ratio."""
    ratio = (new - old).exp().requires_grad_()
    clipped = ratio.clamp(0.8, 1.28)
    terms = torch.maximum(-ratio * advantages[:, None], -clipped * advantages[:, None])
    capped = torch.minimum(terms, -3.0 * advantages[:, None])
    torch.where(advantages[:, None] < 0, capped, terms).sum().backward()
    assert ratio.grad is not None
    return ratio.grad


def test_micro_batches_change_neither_loss_nor_gradient(case: Case) -> None:
    whole = case.gradients(SELECTED, tokens_per_micro_batch=10**6)
    alone = case.gradients(SELECTED, tokens_per_micro_batch=1)
    assert alone[0] == pytest.approx(whole[0], rel=1e-5)
    assert alone[1] == pytest.approx(whole[1], rel=1e-4, abs=1e-9)
    assert_equal_gradients(alone[2], whole[2])


def test_rows_that_read_their_own_prompt_give_the_same_gradients(case: Case) -> None:
    shared = case.gradients(SELECTED)
    unshared = case.gradients(SELECTED, share_prompts=False)
    assert unshared[0] == pytest.approx(shared[0], rel=1e-5)
    assert_equal_gradients(unshared[2], shared[2])


def test_the_order_of_rows_changes_nothing(qwen35: Case) -> None:
    forward, backward = qwen35.gradients(SELECTED), qwen35.gradients(SELECTED[::-1])
    assert forward[0] == pytest.approx(backward[0], rel=1e-6)
    assert_equal_gradients(forward[2], backward[2])


def test_what_stands_in_the_padding_changes_nothing(qwen35: Case) -> None:
    before = qwen35.gradients(SELECTED)
    tokens = qwen35.rollouts.tokens.clone()
    assert (~qwen35.rollouts.mask).any()
    tokens[~qwen35.rollouts.mask] = 17
    qwen35.rollouts = replace(qwen35.rollouts, tokens=tokens)
    qwen35.model.processor = replace(qwen35.model.processor, pad_id=33)
    after = qwen35.gradients(SELECTED)
    assert after[0] == pytest.approx(before[0], rel=1e-5)
    reference = {n: g for n, g in before[2].items() if "embed_tokens" not in n}
    assert_equal_gradients({n: after[2][n] for n in reference}, reference)


def test_responses_of_one_and_two_tokens_have_exact_gradients(qwen35: Case) -> None:
    lengths = qwen35.rollouts.lengths.clone()
    lengths[0], lengths[1] = 1, 2
    qwen35.rollouts = replace(qwen35.rollouts, lengths=lengths)
    for rows in [(0,), (0, 1), (1, 5)]:
        assert_equal_gradients(qwen35.gradients(rows)[2], qwen35.plain(rows)[2])


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_keeps_less_and_changes_no_gradient(
    family: str, share: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(family)
    plain = Case(folder, tmp_path)
    checkpointed = Case(folder, tmp_path, gradient_checkpointing=True)
    assert torch.equal(plain.rollouts.tokens, checkpointed.rollouts.tokens)
    reference, most = kept_by(lambda: plain.gradients(SELECTED, share_prompts=share))
    ours, kept = kept_by(lambda: checkpointed.gradients(SELECTED, share_prompts=share))
    assert_equal_gradients(ours[2], reference[2])
    assert kept < most / 2


def first_of(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpointed_pass_that_is_given_up_is_freed(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = Case(request.getfixturevalue(family), tmp_path, gradient_checkpointing=True)
    seen: list[weakref.ref[Tensor]] = []
    for module in case.model.network.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.register_forward_hook(
                lambda _module, _inputs, found: seen.append(weakref.ref(first_of(found)))
            )
    responses = [case.rollouts.tokens[row, :4] for row in SELECTED]
    owners = [case.rollouts.prompt_of(row) for row in SELECTED]
    hidden = case.model.response_hidden(case.rollouts.prompts, owners, responses)
    assert hidden.requires_grad
    assert any(each() is not None for each in seen)
    del hidden
    gc.collect()
    assert not any(each() is not None for each in seen)


def test_a_copy_of_a_checkpointed_network_computes_with_its_own_layers(
    small_qwen35: Path, tmp_path: Path
) -> None:
    network = Case(small_qwen35, tmp_path, gradient_checkpointing=True).model.network
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    logits = copied(input_ids=torch.arange(8)[None], use_cache=False).logits
    logits.square().sum().backward()
    assert all(parameter.grad is None for parameter in network.parameters())
    assert sum(parameter.grad is not None for parameter in copied.parameters()) > 10


def kept_by(run: Callable[[], Found]) -> tuple[Found, int]:
    """Return what a run returns, and how many numbers it kept for its backward passes."""
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return run(), kept


def test_with_adapters_only_the_adapters_have_gradients(small_qwen35: Path, tmp_path: Path) -> None:
    case = Case(small_qwen35, tmp_path, lora=LoraSettings(rank=4))
    loss, _, gradients = case.gradients(SELECTED)
    assert gradients
    assert all("lora" in name for name in gradients)
    plain_loss, _, plain_gradients = case.plain(SELECTED)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert_equal_gradients(gradients, plain_gradients)


def test_a_valid_update_moves_the_weights_by_the_clipped_gradient(qwen35: Case) -> None:
    learner = qwen35.learner(learning_rate=1e-3, warmup_steps=10)
    before = {n: p.detach().clone() for n, p in qwen35.model.trainable().items()}
    update = learner.update(qwen35.rollouts, SELECTED, qwen35.scored(SELECTED))
    assert update.is_valid
    assert update.learning_rate == pytest.approx(1e-3 * 4 / 10)  # step 3, counted from 0
    assert set(update.observed) == set(SELECTED)
    moved = [
        float((p.detach() - before[n]).abs().max()) for n, p in qwen35.model.trainable().items()
    ]
    # AdamW's first step moves a weight by the rate, plus what weight decay takes.
    assert max(moved) == pytest.approx(4e-4, rel=0.05)
    assert all(p.grad is None for p in qwen35.model.trainable().values())


def test_a_step_that_is_not_finite_is_skipped_and_its_labels_dropped(qwen35: Case) -> None:
    learner = qwen35.learner()
    before = {n: p.detach().clone() for n, p in qwen35.model.trainable().items()}
    scores = qwen35.teacher.score(qwen35.rollouts, SELECTED)
    first = scores.rows[0]
    hidden = {**scores.hidden, first: torch.full_like(scores.hidden[first], torch.nan)}
    broken = qwen35.objective(replace(scores, hidden=hidden))
    update = learner.update(qwen35.rollouts, SELECTED, broken)
    assert not update.is_valid
    assert update.dropped == 1
    assert set(update.observed) == set(SELECTED) - {first}
    for name, parameter in qwen35.model.trainable().items():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    assert not learner.optimizer.state


def test_an_empty_selection_leaves_everything_while_the_schedule_advances(qwen35: Case) -> None:
    learner = qwen35.learner(learning_rate=1.0, warmup_steps=8)
    update = learner.update(qwen35.rollouts, (), qwen35.scored(()))
    assert (update.loss, update.is_valid, update.observed) == (0.0, False, {})
    assert update.learning_rate == 0.5
    assert not learner.optimizer.state


def test_the_rate_rises_linearly_and_then_stays(qwen35: Case) -> None:
    learner = qwen35.learner(learning_rate=2.0, warmup_steps=4)
    nothing = qwen35.scored(())
    rates = [
        learner.update(replace(qwen35.rollouts, step=s), (), nothing).learning_rate
        for s in range(6)
    ]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_the_rate_falls_linearly_after_the_warm_up(qwen35: Case) -> None:
    learner = qwen35.learner(learning_rate=2.0, warmup_steps=2, decay_until=6)
    nothing = qwen35.scored(())
    rates = [
        learner.update(replace(qwen35.rollouts, step=s), (), nothing).learning_rate
        for s in range(7)
    ]
    assert rates == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0]


def test_processed_tokens_count_a_shared_prompt_once(qwen35: Case) -> None:
    rollouts = qwen35.rollouts
    objective = qwen35.scored(SELECTED)
    responses = int((rollouts.lengths[list(SELECTED)] - 1).sum())  # the last is never read
    lengths = [prompt.length for prompt in rollouts.prompts]
    shared = qwen35.learner().accumulate(rollouts, SELECTED, objective)
    assert shared.processed_tokens == sum(lengths[:3]) + responses
    unshared = qwen35.learner(share_prompts=False).accumulate(rollouts, SELECTED, objective)
    assert unshared.processed_tokens == sum(lengths[row // 3] for row in SELECTED) + responses


def test_utilities_have_the_factors_that_were_asked_for(qwen35: Case) -> None:
    scores = qwen35.teacher.score(qwen35.rollouts, SELECTED)
    whole, without = (
        qwen35.learner().measure(qwen35.rollouts, SELECTED, qwen35.objective(scores, settings))
        for settings in (SETTINGS, replace(SETTINGS, use_overlap=False))
    )
    assert all(without.observed[row] > whole.observed[row] for row in SELECTED)


def test_measuring_observes_what_training_does_and_leaves_no_gradient(qwen35: Case) -> None:
    learner, objective = qwen35.learner(), qwen35.scored(SELECTED)
    measured = learner.measure(qwen35.rollouts, SELECTED, objective)
    assert all(p.grad is None for p in qwen35.model.trainable().values())
    trained = learner.accumulate(qwen35.rollouts, SELECTED, objective)
    assert measured.observed == trained.observed
    assert torch.equal(measured.loss, trained.loss)
