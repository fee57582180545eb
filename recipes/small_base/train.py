"""Train the small base model from random weights on one GPU, for a given time.

    python -m recipes.small_base.train --out runs/base --seconds 540
    python -m recipes.small_base.train --out runs/base-2 --from runs/base/model --seconds 540

Whole pictures show things of at least `--smallest` pixels, crops show things of every size: the
model then searches and reads, but misses what is small in a whole picture. The saved weights are a
moving average; `--from` continues from them alone, with a new warm-up.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from bas_opd.model.loading import load_model
from bas_opd.model.processing import Processor
from recipes.small_base.compose import Painter
from recipes.small_base.feed import COURSES, Scenes
from recipes.small_base.network import CROPS, FULL, Labels, Views, build

WARMUP = 200
AVERAGE = 0.998
GRAPH_AFTER = 5


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    start = options.start or build(
        options.out / "start",
        options.seed,
        options.version,
        vision_layers=options.vision_layers,
        text_layers=options.text_layers,
    )
    processor = Processor.load(start)
    model: Any = load_model(str(start), device=device).train()
    scenes = Scenes(
        processor,
        whole=options.whole,
        crops=options.crops,
        smallest=options.smallest,
        seed=options.seed,
        version=options.version,
    )
    painter = Painter(device)
    labels = Labels(model.config.text_config.hidden_size).to(device)
    views = {
        name: Views(model, side, scenes.prefix, scenes.course.questions, scenes.course.length)
        for name, side in (("whole", FULL), ("crops", CROPS[options.version]))
    }
    trained = [p for p in (*model.parameters(), *labels.parameters()) if p.requires_grad]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": 0.05},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=torch.tensor(options.learning_rate, device=device),
        betas=(0.9, 0.98),
        fused=True,
        capturable=device.type == "cuda",
    )
    average = copy.deepcopy(model).eval()
    update = Update(
        views=views,
        labels=labels,
        painter=painter,
        optimiser=optimiser,
        label_weight=options.label_weight,
    )
    # Pinning would need a thread that calls CUDA, which is not allowed during graph capture.
    feed = DataLoader(scenes, batch_size=None, num_workers=options.workers)
    log = (options.out / "log.jsonl").open("a", encoding="utf-8")
    began, step = time.monotonic(), 0
    for step, batch in enumerate(feed):
        if step == GRAPH_AFTER + 1:  # Compiling the kernels does not count as training time.
            began = time.monotonic()
        spent = time.monotonic() - began
        if spent > options.seconds:
            break
        rate = options.learning_rate * min(
            1.0, (step + 1) / WARMUP, (options.seconds - spent) / (options.decay * options.seconds)
        )
        parts = update(batch, rate)
        keep = min(AVERAGE, step / (step + 10))
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 1 - keep)
        if step % 50 == 0:
            line = {"step": step, "seconds": round(spent, 1), "rate": rate}
            line |= {name: round(float(value), 4) for name, value in parts.items()}
            log.write(json.dumps(line) + "\n")
            log.flush()
            if step % 500 == 0:
                print(json.dumps(line), flush=True)
    # In half precision, as a plain transformers checkpoint.
    average.half().save_pretrained(options.out / "model")
    processor.save(options.out / "model")
    print(f"{step} steps in {time.monotonic() - began:.0f} s; saved {options.out / 'model'}")


@dataclass(eq=False, kw_only=True)
class Update:
    """One optimiser update: draw the pictures, run both views, step.

    On a GPU the whole of it becomes one CUDA graph after a few steps; the model is so small that
    starting its kernels one by one takes longer than running them.
    """

    views: dict[str, Views]
    labels: Labels
    painter: Painter
    optimiser: torch.optim.AdamW
    label_weight: float
    batch: dict[str, Tensor] = field(default_factory=dict)
    graph: torch.cuda.CUDAGraph | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)
    taken: int = 0

    def __call__(self, batch: dict[str, Tensor], rate: float) -> dict[str, Tensor]:
        if not self.batch:
            self.batch = {name: value.to(self.painter.device) for name, value in batch.items()}
        for name, value in batch.items():
            self.batch[name].copy_(value, non_blocking=True)
        for group in self.optimiser.param_groups:
            group["lr"].fill_(rate)
        self.taken += 1
        if self.painter.device.type != "cuda":
            self._run()
        elif self.graph is not None:
            self.graph.replay()
        elif self.taken <= GRAPH_AFTER:
            with torch.cuda.stream(torch.cuda.Stream()):
                self._run()
            torch.cuda.synchronize()
        else:
            self.optimiser.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self._run()
            self.graph.replay()
        return self.parts

    def _run(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        for name, view in self.views.items():
            things, box = self.batch[f"{name}.things"], self.batch[f"{name}.view"]
            pixels = self.painter.paint(things, self.batch[f"{name}.backdrop"], box, view.side)
            tokens = self.batch[f"{name}.tokens"].long()
            # Autocast must not keep casts of weights that the graph will change.
            with torch.autocast(
                self.painter.device.type,
                dtype=torch.bfloat16,
                enabled=self.painter.device.type == "cuda",
                cache_enabled=False,
            ):
                images = view.pictures(pixels)
                logits = view.texts(images, tokens)[:, :, :-1].float()
                targets = tokens[:, :, 1:].masked_fill(
                    ~self.batch[f"{name}.learnt"][:, :, 1:], -100
                )
                answer = F.cross_entropy(logits.flatten(0, 2), targets.flatten())
                label = self.labels.loss(images, things, box)
            (answer + self.label_weight * label).backward()
            self.parts[f"{name}.answer"] = answer.detach()
            self.parts[f"{name}.label"] = label.detach()
        trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.parts["norm"] = torch.nn.utils.clip_grad_norm_(trained, 1.0).detach()
        self.optimiser.step()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--from", dest="start", type=Path, help="a model folder to continue from")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument(
        "--decay", type=float, default=0.35, help="share of the time in which the rate decays"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--label-weight", type=float, default=0.3)
    parser.add_argument("--whole", type=int, default=192, help="whole pictures a step")
    parser.add_argument("--crops", type=int, default=192, help="crops a step")
    parser.add_argument("--version", choices=tuple(COURSES), default="finesearch")
    parser.add_argument("--smallest", type=int, help="pixels of a thing in a whole picture")
    parser.add_argument("--vision-layers", type=int)
    parser.add_argument("--text-layers", type=int)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
