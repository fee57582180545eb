"""Train the small base model from nothing on one GPU, for a given time.

    python recipes/small_base/train.py --out runs/base --seconds 540
    python recipes/small_base/train.py --out runs/base-2 --from runs/base/model --seconds 540

Whole pictures show things of at least `--smallest` pixels, crops show things of every size: the model
then searches and reads, but misses what is small in a whole picture. The weights that are saved are
a moving average; training goes on from them alone, with a fresh warm-up.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import shape
import torch
import torch.nn.functional as F
from compose import Painter
from feed import LENGTH, QUESTIONS, Mix, Scenes
from network import Labels, Views
from torch import Tensor
from torch.utils.data import DataLoader

from bas_opd.model.loading import load_model
from bas_opd.model.processing import Processor

WARMUP = 200
AVERAGE = 0.998


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    start = Path(options.start) if options.start else shape.build(options.out / "start", options.seed)
    processor = Processor.load(start)
    model = load_model(str(start), device=device).train()
    mix = Mix(whole=options.whole, crops=options.crops, smallest=options.smallest)
    scenes = Scenes(processor, mix, seed=options.seed)
    painter = Painter(device)
    labels = Labels(model.config.text_config.hidden_size).to(device)
    views = {
        name: Views(model, side, scenes.prefix, QUESTIONS, LENGTH)
        for name, side in (("whole", shape.FULL), ("crops", shape.CROP))
    }
    trained = [p for p in (*model.parameters(), *labels.parameters()) if p.requires_grad]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": 0.05},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    average = copy.deepcopy(model).eval()
    losses = {name: _loss(view, labels) for name, view in views.items()}
    if options.compile:
        losses = {name: torch.compile(loss) for name, loss in losses.items()}
    feed = DataLoader(
        scenes, batch_size=None, num_workers=options.workers, pin_memory=device.type == "cuda"
    )
    began = time.monotonic()
    seen: dict[str, float] = {}
    log = (options.out / "log.jsonl").open("a", encoding="utf-8")
    for step, batch in enumerate(feed):
        spent = time.monotonic() - began
        if spent > options.seconds:
            break
        rate = options.learning_rate * min(
            1.0, (step + 1) / WARMUP, (options.seconds - spent) / (options.decay * options.seconds)
        )
        for group in optimiser.param_groups:
            group["lr"] = rate
        batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        parts: dict[str, Tensor] = {}
        for name, view in views.items():
            arrays = [batch[f"{name}.{array}"] for array in ("things", "backdrop", "view")]
            pixels = painter.paint(*arrays, view.side)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                answer, label = losses[name](
                    pixels,
                    batch[f"{name}.tokens"].long(),
                    batch[f"{name}.learnt"],
                    arrays[0],
                    arrays[2],
                )
            weight = options.label_weight
            (answer + weight * label).backward()
            parts |= {f"{name}.answer": answer.detach(), f"{name}.label": label.detach()}
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            keep = min(AVERAGE, step / (step + 10))
            torch._foreach_lerp_(
                list(average.parameters()), list(model.parameters()), 1 - keep
            )
        if step % 50 == 0:
            seen = {name: round(float(value), 4) for name, value in parts.items()}
            line = {"step": step, "seconds": round(spent, 1), "lr": rate, "norm": round(float(norm), 2)}
            log.write(json.dumps(line | seen) + "\n")
            log.flush()
            if step % 200 == 0:
                print(json.dumps(line | seen), flush=True)
    save(average, processor, options.out / "model")
    print(f"{step} steps in {time.monotonic() - began:.0f} s; saved {options.out / 'model'}", flush=True)


def _loss(view: Views, labels: Labels) -> Any:
    def loss(
        pixels: Tensor, tokens: Tensor, learnt: Tensor, things: Tensor, box: Tensor
    ) -> tuple[Tensor, Tensor]:
        images = view.pictures(pixels)
        logits = view.texts(images, tokens)[:, :, :-1].float()
        targets = tokens[:, :, 1:].masked_fill(~learnt[:, :, 1:], -100)
        answer = F.cross_entropy(logits.flatten(0, 2), targets.flatten())
        return answer, labels.loss(images, things, box)

    return loss


def save(model: Any, processor: Processor, folder: Path) -> None:
    """Write the weights in half precision, as a plain transformers checkpoint."""
    half = copy.deepcopy(model).half()
    half.save_pretrained(folder)
    processor.save(folder)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--from", dest="start", help="a model folder to go on from")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--decay", type=float, default=0.35, help="share of the time that cools down")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--label-weight", type=float, default=0.3)
    parser.add_argument("--whole", type=int, default=192, help="whole pictures a step")
    parser.add_argument("--crops", type=int, default=192, help="crops a step")
    parser.add_argument("--smallest", type=int, default=40)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
