"""AdamW with moments in 8 bits, against fp32: how far apart two short runs end.

    python benchmarks/eight_bit.py
    python benchmarks/eight_bit.py --steps 100 --questions 400

The packaged small model trains on FineSearch with the settings of the demo, three times: with fp32
moments, with 8 bits, and with fp32 moments and another seed, which shows what chance does. Once the
weights differ, so do the sampled responses: the distance has that in it. It is the norm of the
difference of the trained weights over the norm of what fp32 training changed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from _sides import check_output, write_numbers
from safetensors.torch import load_file
from torch import Tensor

from bas_opd.commands.named_set import KINDS
from bas_opd.config import load_config, preset
from bas_opd.data.finesearch import make_finesearch
from bas_opd.evaluate.during_training import evaluator
from bas_opd.model.base import small_base
from bas_opd.run import loop
from bas_opd.run.history import read_outline
from bas_opd.run.progress import Quiet

ARMS = {
    "float32": ("optim.moments=float32", "run.seed=1"),
    "8bit": ("optim.moments=8bit", "run.seed=1"),
    "float32, another seed": ("optim.moments=float32", "run.seed=2"),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--prompts", type=int, default=8, help="of a step")
    options.add_argument("--questions", type=int, default=200, help="held out, for the accuracy")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    chosen = options.parse_args()
    check_output(chosen)
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as name:
        home, kinds = Path(name), KINDS["finesearch"]
        n = chosen.steps * chosen.prompts
        make_finesearch(home / "train", split="train", size="small", n=n, seed=0, kinds=kinds)
        n = chosen.questions
        make_finesearch(home / "test", split="test", size="small", n=n, seed=0, kinds=kinds)
        runs = {arm: train(home, chosen, *settings) for arm, settings in ARMS.items()}
        start, end = weights(small_base()), weights(runs["float32"] / "model")
        found = {
            arm: {
                "distance": distance(weights(run / "model"), end) / distance(start, end),
                "accuracy": accuracy(run),
                "moment_bytes": size_of(run / "checkpoints"),
            }
            for arm, run in runs.items()
        }
    print(f"{chosen.steps} steps of {chosen.prompts} prompts, {chosen.questions} questions")
    print(f"{'moments':<26}{'distance':>9}{'accuracy':>10}{'moments, MB':>13}")
    for arm, each in found.items():
        moments = f"{each['moment_bytes'] / 1e6:>13.2f}"
        print(f"{arm:<26}{each['distance']:>9.4f}{each['accuracy']:>10.3f}{moments}")
    write_numbers(chosen, {"arms": found})


def train(home: Path, chosen: argparse.Namespace, *settings: str) -> Path:
    """Train one arm, and return its directory."""
    config = load_config(
        preset("learned25"),
        [
            f"model.path={small_base()}",
            f"data.path={home / 'train'}",
            f"run.output={home / '-'.join(settings)}",
            f"run.steps={chosen.steps}",
            f"run.checkpoint_every={chosen.steps}",
            f"rollout.prompts_per_step={chosen.prompts}",
            f"eval.data={home / 'test'}",
            f"eval.every={chosen.steps}",
            "model.device=cpu",
            *settings,
        ],
        over=preset("demo"),
    )
    return loop.train(config, Quiet(), evaluate=evaluator(config)).directory


def weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a model folder."""
    return {n: w for file in folder.glob("*.safetensors") for n, w in load_file(file).items()}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return sum(float((one[n].float() - other[n].float()).square().sum()) for n in one) ** 0.5


def accuracy(run: Path) -> float:
    """Return the accuracy at the end of a run."""
    return read_outline(run).evaluations[-1].accuracy


def size_of(checkpoints: Path) -> int:
    """Return the bytes of the optimizer's state in the last checkpoint."""
    return sorted(checkpoints.glob("step-*/optimiser.safetensors"))[-1].stat().st_size


if __name__ == "__main__":
    main()
