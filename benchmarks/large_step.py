"""Whole training steps of a random model with the shape of Qwen3.5-4B on one GPU.

    python benchmarks/large_step.py --json step.json
    python benchmarks/large_step.py --tokens 1024 --ends --json step.json
    python benchmarks/large_step.py --reshard --json step.json

Prints seconds per phase and peak memory. The weights are random, so responses never end by
themselves. All reach the length limit; with --ends four do, and the ends of the others are forced:
their lengths are geometric with mean 70. With --shard or --reshard one process treats its
parameters like several, which shows what that costs without a network between them.

As in a run, threads open the pictures of the next step and the crops of selected rows; `waited` is
how long a step waited for them. Retries are allocations that had to free cached memory first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path

import torch
from _sides import build_small_model, check_output, profiled, write_numbers
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from bas_opd.algorithm import Stages, train_step
from bas_opd.compute.clock import Clock
from bas_opd.compute.world import World
from bas_opd.data.views import crop_size, crop_view, full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.model.attention import register_grouped_attention
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.processing import Processor
from bas_opd.model.recompute import recompute_layers
from bas_opd.model.shapes import TEXT, VISION
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.select import build_selector
from bas_opd.teacher import SelfTeacher
from bas_opd.types import Crop, Example, Hooks, PromptBatch


def large_model(folder: Path, *, layers: int, device: str) -> VisionLanguageModel:
    """Return a random model of the 4B shape that reads prompts of the small model's processor."""
    build_small_model(folder)
    small = AutoConfig.from_pretrained(folder).to_dict()
    small["text_config"].pop("layer_types")
    config = Qwen3_5Config(
        text_config={**small["text_config"], **TEXT, "num_hidden_layers": layers},
        vision_config={**small["vision_config"], **VISION},
        **{key: small[key] for key in small if key.endswith("_token_id")},
        tie_word_embeddings=True,
    )
    config._attn_implementation = register_grouped_attention()
    with torch.device(device):
        network = Qwen3_5ForConditionalGeneration(config).eval()
    return VisionLanguageModel(
        network, Processor.load(folder, max_pixels=2**24), precision=torch.bfloat16
    )


def force_ends(sampler: Sampler, rows: int, limit: int, *, mean: float = 70, long: int = 4) -> None:
    """Let responses end at lengths drawn once, `long` of them at the limit."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.empty(rows).geometric_(1 / mean, generator=generator).long()
    lengths[torch.randperm(rows, generator=generator)[:long]] = limit
    last = torch.cat([lengths.clamp(max=limit) - 1, torch.tensor([limit])]).to(sampler.model.device)
    end, draw = sampler.model.processor.eos_ids[0], sampler._decode.choose

    def choose(logits: Tensor, alive: Tensor, position: Tensor) -> Tensor:
        return draw(logits, alive, position).masked_fill(position >= last[alive], end)

    sampler._decode.choose = choose


def pictures(folder: Path, n: int, side: int) -> tuple[Example, ...]:
    """Return n noisy pictures with a box on each."""
    folder.mkdir()
    examples = []
    for i in range(n):
        path = folder / f"{i}.png"
        # Noise hardly compresses, so PNG's usual effort would take most of the start.
        Image.effect_noise((side, side), 60 + i).convert("RGB").save(path, compress_level=1)
        box = (100.0, 100.0, 100.0 + side // 3, 100.0 + side // 3)
        crop = Crop(area=1 / 9, box=box)
        examples.append(Example(id=str(path), image=path, question="What is it?", crop=crop))
    return tuple(examples)


class Meter(Clock):
    """A clock that also knows the GiB that each phase takes at its peak."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.peaks: dict[str, float] = {}
        self.reserved = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats()
        with super().phase(name):
            yield
        peak = torch.cuda.max_memory_allocated() / 2**30
        self.peaks[name] = max(peak, self.peaks.get(name, 0.0))
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved() / 2**30)

    def forget(self) -> None:
        """Forget the peaks so far."""
        self.peaks, self.reserved = {}, 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=28)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--side", type=int, default=1024, help="picture side, 32 pixels a token")
    parser.add_argument("--tokens", type=int, default=64, help="length limit of a response")
    parser.add_argument("--ends", action="store_true", help="responses end at geometric lengths")
    parser.add_argument("--memory", type=float, help="GiB of the GPU that may be used")
    parser.add_argument("--ratio", default="0.25")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=1500, help="tokens of a student pass")
    parser.add_argument("--prompts-per-batch", type=int, help="prompts decoded together")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")
    parser.add_argument("--unshared", action="store_true", help="a prompt for each of its rows")
    parser.add_argument("--offload", action="store_true", help="moments and teacher in host memory")
    parser.add_argument("--shard", action="store_true", help="gather weights for each phase")
    parser.add_argument("--reshard", action="store_true", help="and layers one by one to learn")
    parser.add_argument("--threads", type=int, default=8, help="threads that open pictures")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--profile", help="write what one more step spends time on to this file")
    arguments = parser.parse_args()
    check_output(arguments)

    if arguments.memory:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(arguments.memory * 2**30 / whole)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = large_model(folder, layers=arguments.layers, device="cuda")
        if arguments.checkpointing:
            recompute_layers(model.network)
        parameters = sum(p.numel() for p in model.network.parameters())
        if arguments.shard or arguments.reshard:
            model.shard(World(), by_layer=arguments.reshard)
        print(f"{parameters / 1e9:.2f} billion parameters", flush=True)
        batches = [pictures(folder / str(n), arguments.prompts, arguments.side) for n in range(2)]
        clock = Meter(model.device)
        full, crops = (
            ViewEncoder(model.processor, view, clock, threads=arguments.threads)
            for view in (full_view, crop_view)
        )
        sampler = Sampler(
            model,
            full_view,
            SamplingSettings(
                per_prompt=arguments.rollouts,
                max_response_tokens=arguments.tokens,
                prompts_per_batch=arguments.prompts_per_batch,
            ),
            hooks=Hooks(notice=partial(print, flush=True)),
            views=full,
        )
        if arguments.ends:
            force_ends(sampler, arguments.prompts * arguments.rollouts, arguments.tokens)
        stages = Stages(
            policy=sampler,
            selector=build_selector("learned"),
            teacher=SelfTeacher(
                model, crop_view, offload=arguments.offload, size=crop_size, views=crops
            ),
            learner=Learner(
                model,
                OptimizerSettings(
                    tokens_per_micro_batch=arguments.micro_batch,
                    share_prompts=not arguments.unshared,
                    offload=arguments.offload,
                ),
            ),
            objective=partial(
                Distillation,
                head=model.logits,
                fast_head=model.fast_head,
                settings=DistillSettings(),
            ),
            clock=clock,
        )
        rows = []

        def batch_of(step: int) -> PromptBatch:
            now, later = batches[step % 2], batches[(step + 1) % 2]
            return PromptBatch(step=step, examples=now, upcoming=later)

        for step in range(arguments.steps):
            clock.forget()
            retries = torch.cuda.memory_stats()["num_alloc_retries"]
            batch = batch_of(step)
            report = train_step(stages, batch, Decimal(arguments.ratio))
            assert report.queries is not None
            rows.append(
                {
                    "step": step,
                    "rollouts": len(report.rollouts),
                    "prompt_tokens": report.rollouts.prompts[0].length,
                    "response_tokens": int(report.rollouts.lengths.sum()),
                    "queries": len(report.rows),
                    "teacher_tokens": report.queries.teacher.processed_tokens,
                    "student_tokens": report.update.processed_tokens,
                    "loss": report.update.loss,
                    "gradient_norm": report.update.gradient_norm,
                    "is_valid": report.update.is_valid,
                    "peak_gib": max(clock.peaks.values()),
                    "peaks_gib": clock.peaks,
                    "reserved_gib": clock.reserved,
                    "retries": torch.cuda.memory_stats()["num_alloc_retries"] - retries,
                    "waited": report.waited_seconds,
                    "seconds": report.seconds,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            # After each step, since a machine may be lent for a short time.
            write_numbers(arguments, {"parameters": parameters, "steps": rows})
        if arguments.profile:  # Counting its millions of events takes minutes.
            with profiled(Path(arguments.profile)):
                train_step(stages, batch_of(arguments.steps), Decimal(arguments.ratio))


if __name__ == "__main__":
    main()
