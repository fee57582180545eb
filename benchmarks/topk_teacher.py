"""How far a teacher that is known by its top-k log-probs is from one whose logits are all known.

    python benchmarks/topk_teacher.py

Student and teacher are the small model of FineSearch 2: the student sees the picture, the teacher
the crop. The exact side is what training does in one process: D on the student's top-100 with a
tail, and u on the student's top-100. The other side knows the teacher where a server would, at the
sampled token and the likeliest others. Both have the same rows and the same student.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bas_opd.data.finesearch.make import make_finesearch
from bas_opd.data.views import crop_view, full_view
from bas_opd.distill.divergence import divergence_on, jensen_shannon, student_topk
from bas_opd.distill.utility import token_utility
from bas_opd.model.loading import open_model
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.serving.scoring import Answer, ScoringRequest
from bas_opd.teacher import SelfTeacher
from bas_opd.teacher.server_teacher import TopLogprobs
from bas_opd.text import markdown_table
from bas_opd.types import FullLogits, PromptBatch, TokenScores

STUDENT_K = 100
SIZES = (5, 10, 20, 50, 100)


@torch.no_grad()
def logits_of(pictures: int, seed: int) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Return logits of student and teacher at every sampled token, the tokens, and row lengths."""
    model = open_model("small2", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        data = make_finesearch(
            Path(folder) / "set", split="train", size="small", n=pictures, seed=seed,
            version="finesearch2",
        )  # fmt: skip
        sampling = SamplingSettings(seed=seed, per_prompt=8, max_response_tokens=32)
        batch = PromptBatch(step=0, examples=data.examples)
        rollouts = Sampler(model, full_view, sampling).generate(batch)
        rows = rollouts.candidates()
        sides = [
            SelfTeacher(model, view, mode="live").score(rollouts, rows)
            for view in (full_view, crop_view)
        ]
    lengths = [int(rollouts.lengths[row]) for row in rows]
    tokens = torch.cat([rollouts.tokens[row, :n] for row, n in zip(rows, lengths, strict=True)])
    student, teacher = (
        torch.cat([side.head.logits(side.hidden[row]) for row in rows]) for side in sides
    )
    return student, teacher, tokens, lengths


def top_logprobs(teacher: Tensor, tokens: Tensor, k: int) -> TopLogprobs:
    """Return what a server would give of a teacher."""
    table = teacher.log_softmax(-1)
    top = table.topk(k, dim=-1)
    answer = Answer(
        ids=top.indices.tolist(),
        logprobs=top.values.tolist(),
        sampled=table.gather(-1, tokens[:, None])[:, 0].tolist(),
    )
    response = tuple(tokens.tolist())
    asked = ScoringRequest(prompt=(), response=response, image=b"", prompt_length=0, k=k)
    return TopLogprobs.of(answer, asked)


def measure(student: Tensor, teacher: TokenScores, lengths: list[int]) -> tuple[Tensor, ...]:
    """Return the loss, its gradient at the student's logits, and the utility of every row."""
    logits = student.clone().requires_grad_()
    index, support = student_topk(logits, STUDENT_K), teacher.support()
    at = index if support is None else support
    loss = divergence_on(logits, teacher, at, alpha=0.5, support="tail").mean()
    (gradient,) = torch.autograd.grad(loss, logits)
    utility = token_utility(logits, teacher, index, support=support)
    rows = torch.stack([part.mean() for part in utility.split(lengths)])
    return loss.detach(), gradient, rows


def compare(pictures: int, seed: int) -> list[dict[str, Any]]:
    """Return the differences from the exact side for each k."""
    student, teacher, tokens, lengths = logits_of(pictures, seed)
    exact = measure(student, FullLogits(teacher), lengths)
    whole = jensen_shannon(student.log_softmax(-1), teacher.log_softmax(-1), alpha=0.5).mean()
    found = []
    for k in SIZES:
        scores = top_logprobs(teacher, tokens, k)
        loss, gradient, utility = measure(student, scores, lengths)
        top = teacher.softmax(-1).gather(-1, scores.ids).sum(-1)
        ranks = [each.argsort().argsort().double() for each in (utility, exact[2])]
        found.append({
            "k": k,
            "rows": len(lengths),
            "tokens": len(tokens),
            "teacher mass known": float(top.mean()),
            "loss / exact": float(loss / exact[0]),
            "loss / full vocabulary": float(loss / whole),
            "cosine of gradients": float(
                torch.cosine_similarity(gradient.flatten(), exact[1].flatten(), dim=0)
            ),
            "gradient error": float((gradient - exact[1]).norm() / exact[1].norm()),
            "rank correlation of u": float(torch.corrcoef(torch.stack(ranks))[0, 1]),
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="Print the numbers as JSON.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = compare(options.pictures, options.seed)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found[0]['rows']} rows, {found[0]['tokens']} tokens")
    names = [name for name in found[0] if name not in ("rows", "tokens")]
    rows = [[f"{e[n]:.4f}" if isinstance(e[n], float) else str(e[n]) for n in names] for e in found]
    print(markdown_table(names, rows))


if __name__ == "__main__":
    main()
