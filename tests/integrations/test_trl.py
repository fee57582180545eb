"""TRL's trainer with a budget: what its teacher computes, counted at the teacher."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed; `make trainers` installs it")

from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid
from trl_fixtures import MICRO, ROWS, Watched, budgeted, prompts, settings, tiny, tokenizer

from bas_opd.budget import query_budget
from bas_opd.errors import BudgetError, CheckpointError, ConfigError
from bas_opd.integrations.trl import logits_of, loss_mask, rows_of
from bas_opd.select import LearnedSelector, RandomSelector


@pytest.mark.parametrize("ratio", ["0.3", "0.5", "1"])
def test_the_teacher_computes_the_floor_of_the_budget_in_every_step(
    tmp_path: Path, ratio: str
) -> None:
    trainer = budgeted(tmp_path, ratio=ratio)
    seen = Watched(trainer)
    trainer.train()
    limit = int(Decimal(ratio) * ROWS)
    assert [len(rows) for rows in seen.asked] == [limit] * 3
    assert (trainer.ledger.calls, trainer.ledger.overrun) == (3 * limit, 0)
    assert trainer.ledger.candidates == 3 * ROWS


def test_an_unselected_row_never_reaches_the_teacher(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path)
    seen = Watched(trainer)
    trainer.train()
    for sampled, selected, asked in zip(seen.sampled, seen.selected, seen.asked, strict=True):
        assert asked == [sampled[row] for row in selected]
        assert len(selected) == query_budget("0.3", ROWS)


def test_rows_are_selected_before_the_teacher_computes_anything(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path)
    seen = Watched(trainer)
    trainer.train()
    assert [kind for kind, _ in seen.events] == ["select", "teacher"] * 3


def test_a_budget_of_no_row_asks_nothing_and_moves_no_weight(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path, ratio="0.1")
    sample = trainer._generate_and_score_completions

    def mostly_silent(inputs: Any) -> Any:
        batch = sample(inputs)
        batch["completion_mask"][9:] = 0
        return batch

    trainer._generate_and_score_completions = mostly_silent
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    seen = Watched(trainer)
    trainer.train()
    assert [len(rows) for rows in seen.asked] == [0, 0, 0]
    assert all(
        torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items()
    )
    assert (trainer.ledger.calls, trainer.ledger.empty_steps) == (0, 3)


def test_a_ratio_that_pays_for_no_row_of_a_full_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"K is 0 of the 12 rows.*at least 0\.08334, or raise"):
        budgeted(tmp_path, ratio="0.05")
    assert query_budget("0.08334", ROWS) == 1
    budgeted(tmp_path, ratio="0.08334")


def gradients(trainer: Any, batch: dict[str, Any], steps: int) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradient of one step on a given batch."""
    trainer._generate_and_score_completions = lambda _: dict(batch)
    trainer.current_gradient_accumulation_steps = steps
    trainer.model.zero_grad()
    loss = sum(float(trainer.training_step(trainer.model, None, None)) for _ in range(steps))
    return loss, [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]


def sampled_batch(trainer: Any) -> dict[str, Any]:
    trainer.model.train()
    inputs = [prompts()[row] for row in range(ROWS)]
    batch = trainer._generate_and_score_completions(inputs)
    # Of different lengths, so that a mean of means is not the mean over tokens.
    keep = torch.arange(batch["completion_ids"].shape[1]) <= torch.arange(ROWS)[:, None] % 6
    batch["completion_mask"] = batch["completion_mask"] * keep
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    return batch


def test_loss_and_gradient_are_those_of_trl_on_the_selected_rows(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path, ratio="0.5")
    batch, steps = sampled_batch(trainer), ROWS // MICRO
    loss, gradient = gradients(trainer, batch, steps)
    selected = rows_of(batch, trainer.gate.record.selected)
    assert len(trainer.gate.record.selected) == 6
    selected["num_items_in_batch"] = selected["completion_mask"].sum()
    plain = DistillationTrainer(
        model=tiny(0),
        teacher_model=tiny(1),
        args=DistillationConfig(
            **settings(tmp_path, per_device_train_batch_size=6, gradient_accumulation_steps=1)
        ),
        train_dataset=prompts(),
        processing_class=tokenizer(),
    )
    expected, reference = gradients(plain, selected, 1)
    assert loss == pytest.approx(expected, rel=1e-5)
    for ours, theirs in zip(gradient, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_an_unselected_row_has_no_part_in_loss_and_gradient(tmp_path: Path) -> None:
    seed = RandomSelector(seed=5)
    one, two = budgeted(tmp_path, selector=seed), budgeted(tmp_path, selector=seed)
    batch = sampled_batch(one)
    expected = gradients(one, batch, ROWS // MICRO)
    others = [row for row in range(ROWS) if row not in one.gate.record.selected]
    assert len(others) == 9
    changed = {**batch, "completion_ids": batch["completion_ids"].clone()}
    changed["completion_ids"][others] = 7
    loss, gradient = gradients(two, changed, ROWS // MICRO)
    assert two.gate.record.selected == one.gate.record.selected
    assert loss == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(gradient, expected[1], strict=True))


def test_the_predictor_learns_from_asked_rows_alone(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path)
    records = []
    finish = trainer.gate.finish
    trainer.gate.finish = lambda **more: records.append(finish(**more)) or records[-1]
    trainer.train()
    labels = trainer.gate.selector.replay.labels
    asked = [
        record.features[record.candidates.index(row)] for record in records for row in record.scored
    ]
    assert labels.features.tolist() == asked
    assert labels.utility.tolist() == [value for record in records for value in record.utility]
    assert all(value > 0 for value in labels.utility.tolist())
    assert [record.learned for record in records] == [False, True, True]


def test_utility_is_that_of_the_logits_of_both_models(tmp_path: Path) -> None:
    from bas_opd.distill import query_utility

    trainer = budgeted(tmp_path, temperature=0.7)
    batch = sampled_batch(trainer)
    gradients(trainer, batch, ROWS // MICRO)
    record = trainer.gate.record
    rows = rows_of(batch, record.selected)
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    width = rows["completion_ids"].shape[1]
    logits = [
        model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1].detach() / 0.7
        for model in (tiny(0), tiny(1))
    ]
    expected = query_utility(logits[0], logits[1], rows["completion_mask"], k=100)
    assert record.utility == pytest.approx(expected.tolist(), rel=1e-3)
    logprobs = logits[0].log_softmax(-1)
    nll = -logprobs.gather(-1, rows["completion_ids"][..., None])[..., 0]
    means = (nll * rows["completion_mask"]).sum(1) / rows["completion_mask"].sum(1)
    known = record.feature_of("mean_nll")
    assert [known[row] for row in record.selected] == pytest.approx(means.tolist(), rel=1e-4)


def test_a_resumed_run_selects_and_learns_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = budgeted(tmp_path / "whole", max_steps=4)
    through = Watched(whole)
    whole.train()
    first = budgeted(tmp_path / "parts", max_steps=4, save_strategy="steps", save_steps=2)
    first.train()
    again = budgeted(tmp_path / "again", max_steps=4)
    seen = Watched(again)
    again.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-2"))
    assert seen.selected == through.selected[2:]
    assert seen.asked == through.asked[2:]
    assert again.ledger == whole.ledger
    state = whole.gate.selector.state_dict()
    assert all(
        torch.equal(value, state[name]) for name, value in again.gate.selector.state_dict().items()
    )


def test_after_a_failed_step_the_trainer_trains_again(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path, ratio="0.5")
    seen = Watched(trainer)
    compute = trainer._utility

    def fails_once(*given: Any) -> Any:
        trainer._utility = compute
        raise ConnectionError("gone")

    trainer._utility = fails_once
    with pytest.raises(ConnectionError, match="gone"):
        trainer.train()
    trainer.train()
    assert [len(rows) for rows in seen.asked] == [MICRO, 6, 6, 6]
    assert trainer.ledger.calls == MICRO + 18
    assert trainer.gate.selector.replay.labels.utility.shape == (18,)


def test_a_checkpoint_without_the_selector_is_refused(tmp_path: Path) -> None:
    budgeted(tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    checkpoint = tmp_path / "checkpoint-2"
    with pytest.raises(CheckpointError, match="saved with LearnedSelector"):
        budgeted(tmp_path, selector=RandomSelector()).train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "bas_opd.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="is damaged"):
        budgeted(tmp_path).train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "bas_opd.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        budgeted(tmp_path).train(resume_from_checkpoint=str(checkpoint))


def test_a_teacher_that_is_asked_otherwise_is_refused_before_it_computes(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path)
    seen = Watched(trainer)
    batch = sampled_batch(trainer)
    trainer._rows = list(trainer.gate.select(
        step=0,
        response_tokens=loss_mask(batch).sum(1).tolist(),
        prompt_tokens=[3] * ROWS,
        logprobs=torch.zeros(ROWS, 6),
    ))  # fmt: skip
    with pytest.raises(BudgetError, match="would score 12 rows where 3 were selected"):
        trainer._compute_loss(trainer.model, batch, None)
    assert [kind for kind, _ in seen.events] == ["select"]


def test_a_random_choice_costs_no_pass_of_the_student(tmp_path: Path) -> None:
    def passes(selector: Any) -> int:
        trainer = budgeted(tmp_path, selector=selector, max_steps=1)
        count = 0

        def counting(_: Any, __: Any, given: dict[str, Any]) -> None:
            nonlocal count
            count += given.get("use_cache") is False

        trainer.model.base_model.register_forward_pre_hook(counting, with_kwargs=True)
        trainer.train()
        return count

    assert (passes(RandomSelector()), passes(LearnedSelector())) == (1, 1 + ROWS // MICRO)


def test_an_evaluation_is_trls_own_and_outside_of_the_ledger(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path)
    trainer.train()
    calls = trainer.ledger.calls
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.ledger.calls == calls


def test_the_logs_have_calls_and_budget(tmp_path: Path) -> None:
    trainer = budgeted(tmp_path, logging_steps=1)
    trainer.train()
    logged = [each for each in trainer.state.log_history if "queries/calls" in each]
    assert [(each["queries/calls"], each["queries/budget"]) for each in logged] == [(3.0, 3.0)] * 3


def test_several_processes_and_a_teacher_that_is_the_student_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bas_opd.integrations.trl import BudgetedDistillationTrainer

    model = tiny(0)
    with pytest.raises(ConfigError, match="Pass a copy"):
        BudgetedDistillationTrainer(
            model=model,
            teacher_model=model,
            args=DistillationConfig(**settings(tmp_path)),
            train_dataset=prompts(),
            processing_class=tokenizer(),
        )
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 2)
    with pytest.raises(ConfigError, match="in one process"):
        budgeted(tmp_path)


SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "build",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=0.05)),
        lambda: Cohere2ForCausalLM(Cohere2Config(**SMALL, logit_scale=0.25)),
        lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=3.0)),
    ],
    ids=["softcap", "scale", "scaling"],
)
def test_logits_are_scaled_and_capped_as_the_models_own(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    ids = torch.arange(1, 8)[None]
    hidden = model.base_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(logits_of(model, hidden), model(input_ids=ids).logits)


def test_rows_keep_their_own_pictures() -> None:
    grids = torch.tensor([[1, 1, 2], [1, 2, 2], [1, 1, 1]])  # two pictures in row 1, none in row 0
    batch = {
        "completion_ids": torch.arange(3)[:, None],
        "pixel_values": torch.arange(7.0)[:, None],
        "image_grid_thw": grids,
        "num_images": [0, 2, 1],
        "num_items_in_batch": torch.tensor(3),
    }
    part = unsplit_pixel_values_by_grid(rows_of(split_pixel_values_by_grid(batch), [1]))
    assert part["pixel_values"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert part["image_grid_thw"].tolist() == grids[:2].tolist()
    assert part["completion_ids"].tolist() == [[1]]
