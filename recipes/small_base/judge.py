"""Print how well a model answers FineSearch from whole pictures and from crops.

python -m recipes.small_base.judge runs/base/model --split val --n 1600

With --told, how well it answers from whole pictures when its prompt has the answer, as that of
OPSD's teacher, or in a wording of yours.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from bas_opd.data.finesearch import VERSIONS, Size, make_finesearch
from bas_opd.data.views import TOLD
from bas_opd.evaluate.answering import ModelAnswers
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.summary import accuracy_by
from bas_opd.evaluate.questions import Question, View
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.model.loading import open_model

SHOWN: dict[Size, tuple[View, ...]] = {"small": ("full", "crop"), "large": ("full",)}
SHOWN_AND_TOLD: dict[Size, tuple[View, ...]] = {"small": ("full",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--split", choices=("train", "val", "test"), default="val")
    parser.add_argument("--version", choices=tuple(VERSIONS), default="finesearch")
    parser.add_argument("--n", type=int, default=1600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--told", action="append", nargs="?", const=TOLD, metavar="WORDING")
    options = parser.parse_args()
    model = open_model(options.model, device=options.device)
    answering = ModelAnswers(model=model, max_response_tokens=80, prompts_per_batch=256)
    finesearch = benchmark("finesearch")
    with tempfile.TemporaryDirectory() as folder:
        for size, views in (SHOWN_AND_TOLD if options.told else SHOWN).items():
            made = make_finesearch(
                Path(folder) / size,
                split=options.split,
                size=size,
                n=options.n,
                seed=1,
                workers=options.workers,
                version=options.version,
            )
            for view in views:
                seen = {"split": options.split, "size": size, "view": view}
                plain = finesearch.load(made.folder, view=view).questions
                for wording in (None, *(options.told or ())):
                    questions = plain if wording is None else told(plain, wording)
                    scored = score_in_memory(finesearch, questions, answering.answers(questions))
                    about = seen if wording is None else seen | {"told": wording}
                    print(json.dumps(about | verdict(scored)), flush=True)


def told(questions: Sequence[Question], wording: str) -> list[Question]:
    """Return the questions with their answers in the prompts."""
    return [
        replace(each, prompt=wording.format(question=each.prompt, answer=each.reference))
        for each in questions
    ]


def verdict(scored: Sequence[Scored]) -> dict[str, float]:
    """Return the number of questions, fewer for crops, and the accuracy of each kind."""
    shares = {each.part: each.value or 0.0 for each in accuracy_by(scored, "kind")}
    learnt = fmean(shares[kind] for kind in LEARNT_KINDS)
    rounded = {kind: round(share, 3) for kind, share in shares.items()}
    return {"n": len(scored), "mean of learnt kinds": round(learnt, 4), **rounded}


if __name__ == "__main__":
    main()
