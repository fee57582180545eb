"""Divergence, utility and loss: pure functions beside their equations."""

from bas_opd.distill.divergence import Support, topk_divergence
from bas_opd.distill.loss import distillation_loss
from bas_opd.distill.utility import query_utility, token_utility

__all__ = [
    "Support",
    "distillation_loss",
    "query_utility",
    "token_utility",
    "topk_divergence",
]
