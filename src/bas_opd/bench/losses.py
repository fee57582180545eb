"""Loss, utility and gradients from hidden states, beside autograd, the losses of others, the floor.

Hidden states and weights are random. The floor is the time of the matrix products alone: two
projections and, with the tail, two products of the backward pass.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bas_opd.bench.sides import Comparison, Side, compare
from bas_opd.distill.loss import DistillSettings, Support
from bas_opd.learn import Distillation
from bas_opd.learn.objective import PackedRows
from bas_opd.model.head import Head, product
from bas_opd.types import FullLogits

FusedLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From hidden states and head of the student and of the teacher."""
PRODUCTS: dict[Support, int] = {"tail": 4, "renormalise": 2}
"""Dense products with the head that a support needs."""


def losses(
    device: torch.device,
    *,
    tokens: int,
    width: int,
    vocabulary: int,
    chunks: Sequence[int],
    repeats: int,
    supports: Sequence[Support] = ("tail", "renormalise"),
) -> list[Comparison]:
    """Compare every support and chunk size; ours on a GPU is the closed form in bf16."""
    setup = _Setup(device, tokens, width, vocabulary)
    others, skipped = setup.others()
    shape = f"{tokens:,} tokens, width {width:,}, vocabulary {vocabulary:,}"
    return [
        compare(
            "loss",
            [*setup.sides(DistillSettings(support=support, tokens_per_chunk=size)), *others],
            shape=f"{shape}, {support}, chunks of {size:,}; ours also measures utility",
            device=device,
            repeats=repeats,
            skipped=skipped,
        )
        for support in supports
        for size in chunks
    ]


def ours(
    device: torch.device,
    *,
    tokens: int,
    width: int,
    vocabulary: int,
    chunk: int,
    support: Support,
) -> Callable[[], int]:
    """Return our side alone, to look at closely."""
    setup = _Setup(device, tokens, width, vocabulary)
    return setup.sides(DistillSettings(support=support, tokens_per_chunk=chunk))[0].run


@dataclass(frozen=True, slots=True)
class _Scores:
    """A teacher whose hidden states are given."""

    hidden: Tensor
    logits: Callable[[Tensor], Tensor]
    rows = (0,)
    processed_tokens = prefilled_prompts = rescored_tokens = 0
    support = None

    @property
    def scored_tokens(self) -> int:
        return len(self.hidden)

    def chunks(self, rows: Sequence[int], size: int) -> Iterator[FullLogits]:
        for states in self.hidden.split(size):
            yield FullLogits(self.logits(states))


class _Setup:
    """Student and teacher: hidden states and heads."""

    def __init__(self, device: torch.device, tokens: int, width: int, vocabulary: int) -> None:
        torch.manual_seed(0)
        weight = torch.randn(vocabulary, width, device=device) * 0.02
        precision = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.student = Head(nn.Parameter(weight), precision)
        self.teacher = Head(weight + 0.001 * torch.randn_like(weight), precision)
        self.hidden = torch.randn(tokens, width, device=device).to(precision)
        self.crop = self.hidden + 0.1 * torch.randn_like(self.hidden)
        self.packed = PackedRows(
            rows=(0,),
            lengths=(tokens,),
            tokens=torch.zeros(tokens, dtype=torch.long),
            sampled=torch.zeros(tokens),
        )

    def sides(self, settings: DistillSettings) -> list[Side]:
        """Return ours, on a GPU our other ways, and the matrix products alone."""
        student, teacher = self.student.weight, self.teacher.weight
        scores = _Scores(self.crop, self.teacher.logits)
        exact = _Scores(self.crop, lambda states: states.float() @ teacher.T)
        explicit = Distillation(scores, self.student.logits, settings, self.student)
        same = Distillation(scores, self.student.logits, settings)
        in_fp32 = Distillation(exact, lambda states: states.float() @ student.T, settings)
        floor = Side(
            name="matrix products alone", run=lambda: self._products(settings), is_floor=True
        )
        if self.hidden.device.type != "cuda":
            return [Side(name="autograd, fp32 head (ours)", run=lambda: self._run(in_fp32)), floor]
        return [
            Side(name="closed form, bf16 head (ours)", run=lambda: self._run(explicit)),
            Side(name="autograd, bf16 head", run=lambda: self._run(same)),
            Side(name="autograd, fp32 head", run=lambda: self._run(in_fp32)),
            floor,
        ]

    def others(self) -> tuple[list[Side], list[str]]:
        """Return the losses of others over the whole vocabulary, and what is not installed."""
        plain = Side(name="plain PyTorch, whole vocabulary", run=lambda: self._whole(plain_jsd))
        sides, skipped = [plain], []
        if importlib.util.find_spec("trl") is None:
            skipped.append("TRL's loss, since trl is not installed.")
        else:
            trl = cache(_trl_jsd)  # At its first run, so that one that fails is left out.
            sides.append(Side(name="TRL, whole vocabulary", run=lambda: self._whole(trl())))
        for name, (package, build) in FUSED.items():
            if importlib.util.find_spec(package.replace("-", "_")) is None:
                skipped.append(f"{name}'s loss, since {package} is not installed.")
            elif self.hidden.device.type != "cuda":
                skipped.append(f"{name}'s loss, which needs a GPU.")
            else:
                run = partial(self._fused, cache(build))
                sides.append(Side(name=f"{name}, whole vocabulary", run=run))
        return sides, skipped

    def _run(self, objective: Distillation) -> int:
        self.student.weight.grad = None
        leaf = self.hidden.detach().requires_grad_()
        objective(leaf, self.packed)
        self.student.weight.grad = None
        return len(leaf)

    def _products(self, settings: DistillSettings) -> int:
        student, teacher = self.student.rounded(), self.teacher.rounded()
        size = settings.tokens_per_chunk
        has_gradient = PRODUCTS[settings.support] == 4
        shape = (size if has_gradient else 0, len(student))
        gradient = torch.zeros(shape, dtype=student.dtype, device=student.device)
        for states, crop in zip(self.hidden.split(size), self.crop.split(size), strict=True):
            product(states, student.T)
            product(crop, teacher.T)
            if has_gradient:
                product(gradient[: len(states)], student)
                product(gradient[: len(states)].T, states)
        return len(self.hidden)

    def _whole(self, jsd: Callable[..., Tensor]) -> int:
        """Materialise all logits in fp32, as a trainer without chunks does."""
        weight = self.student.rounded().clone().requires_grad_()
        leaf = self.hidden.detach().requires_grad_()
        with torch.no_grad():
            teacher = (self.crop @ self.teacher.rounded().T).float()
        jsd((leaf @ weight.T).float()[None], teacher[None], beta=0.5).backward()
        return len(leaf)

    def _fused(self, build: Callable[[], FusedLoss]) -> int:
        """Take a loss that has the products with the heads in it."""
        weight = self.student.rounded().detach().requires_grad_()
        leaf = self.hidden.detach().requires_grad_()
        build()(leaf, weight, self.crop, self.teacher.rounded()).backward()
        return len(leaf)


def _trl_jsd() -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It says that its place may change.
        gkd: Any = importlib.import_module("trl.experimental.gkd")
    return gkd.GKDTrainer.generalized_jsd_loss


def plain_jsd(student: Tensor, teacher: Tensor, *, beta: float) -> Tensor:
    """Return the mean divergence of logits, as PyTorch computes it."""
    p, q = student.log_softmax(-1), teacher.log_softmax(-1)
    mixed = torch.logaddexp(p + torch.tensor(1 - beta).log(), q + torch.tensor(beta).log())
    to_teacher = (q.exp() * (q - mixed)).sum(-1)
    to_student = (p.exp() * (p - mixed)).sum(-1)
    return (beta * to_teacher + (1 - beta) * to_student).mean()


def _liger_jsd() -> FusedLoss:
    chunked: Any = importlib.import_module("liger_kernel.chunked_loss")
    loss = chunked.LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=True, chunk_size=1024
    )

    def run(hidden: Tensor, weight: Tensor, crop: Tensor, teacher: Tensor) -> Tensor:
        found = loss(hidden, weight, crop, teacher, _no_labels(hidden))
        return found[0] if isinstance(found, tuple) else found

    return run


def orda_jsd(backend: str = "triton") -> FusedLoss:
    """Return the loss of orda-kernel that is a Jensen-Shannon divergence."""
    orda: Any = importlib.import_module("orda_kernel")

    def run(hidden: Tensor, weight: Tensor, crop: Tensor, teacher: Tensor) -> Tensor:
        found = orda.distillation_loss(
            hidden,
            weight,
            _no_labels(hidden),
            orda.SeparateTeacher(hidden=crop, weight=teacher),
            student_ce_weight=0.0,
            teacher_ce_weight=0.0,
            kl_weight=1.0,
            kl_divergence="skew_js",
            kl_beta=0.5,
            backend=backend,
        )
        return found.loss

    return run


def _no_labels(hidden: Tensor) -> Tensor:
    return torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)


FUSED: dict[str, tuple[str, Callable[[], FusedLoss]]] = {
    "Liger": ("liger-kernel", _liger_jsd),
    "orda-kernel": ("orda-kernel", orda_jsd),
}
"""Losses that need a GPU: a name, a package and what returns it."""
