"""TRL's DistillationTrainer with a teacher budget, on a CPU in a minute.

    pip install trl
    python recipes/trainers/trl_local.py trl-run

The teacher is a small text model with random weights, and the student is the same model with noise
in them. The example shows the budget and a loss that falls; the trained model is of no use. Put
your own models and prompts in their place.
"""

from __future__ import annotations

import argparse

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.distillation_config import DistillationConfig

from bas_opd.integrations.trl import BudgetedDistillationTrainer
from bas_opd.model.base import small_base
from bas_opd.select import LearnedSelector


def text_model(vocabulary: int, *, noise: float) -> Qwen3ForCausalLM:
    """Return a small text model, with noise in its weights as a share of their deviation."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(10.0)  # distributions far from uniform
        for weights in model.parameters():
            if weights.ndim == 2:
                weights += noise * weights.std() * torch.randn_like(weights)
    return model


def train(
    output: str, *, steps: int, ratio: str, resume: bool = False
) -> BudgetedDistillationTrainer:
    """Distill the student, and return its trainer."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(small_base())
    prompts = [{"prompt": f"What is {a} times {b}?"} for a in range(16) for b in range(16)]
    trainer = BudgetedDistillationTrainer(
        model=text_model(len(tokenizer), noise=0.3),
        teacher_model=text_model(len(tokenizer), noise=0.0),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(prompts),
        args=DistillationConfig(
            output_dir=output,
            max_steps=steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            max_completion_length=16,
            learning_rate=3e-3,
            beta=0.5,
            logging_steps=1,
            save_steps=10,
            report_to="none",
            bf16=False,
            dataloader_pin_memory=False,
            gradient_checkpointing=False,
        ),
        query_ratio=ratio,
        selector=LearnedSelector(replay_start=24),
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="Distill a small student under a teacher budget.")
    parser.add_argument("output", help="folder of TRL's checkpoints")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ratio", default="0.25", help="share of rows the teacher may score")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    given = parser.parse_args()
    trainer = train(given.output, steps=given.steps, ratio=given.ratio, resume=given.resume)
    ledger = trainer.ledger
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    print(
        f"The teacher scored {ledger.calls} of {ledger.candidates} rows and {ledger.scored_tokens} "
        f"of {ledger.candidate_tokens} response tokens, with {ledger.overrun} rows over the "
        f"budget. The loss went from {losses[0]:.4f} to {losses[-1]:.4f}."
    )


if __name__ == "__main__":
    main()
