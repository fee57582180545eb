"""Columns a selector may rank by: functions from the candidates of a step to named columns.

All come from what the sampler measures anyway: no column costs a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bas_opd.types import FEATURES
from recipes.selector_study.scored import Candidates

Columns = Callable[[Candidates], dict[str, Tensor]]
"""Named columns [candidate], float64."""

EDGES = (0.01, 0.1, 0.3, 0.7)
"""Thresholds in nats between certain and uncertain tokens, for entropy and NLL."""


def paper_columns(candidates: Candidates) -> dict[str, Tensor]:
    """The six features of Eq. 5."""
    return dict(zip(FEATURES, candidates.values.unbind(1), strict=True))


def token_columns(candidates: Candidates) -> dict[str, Tensor]:
    """Where in the response the student is unsure: its peaks, first token and last content token.

    The utility is a mean over tokens. If that of a token were a step function of its entropy or
    NLL, the shares of tokens above the thresholds would predict the utility linearly.
    """
    mask, count = candidates.mask, candidates.length.double()
    last = _last_content(candidates)[:, None]
    columns = {}
    for name, values in (("nll", -candidates.logprobs), ("entropy", candidates.entropies)):
        columns[f"max_{name}"] = values.where(mask, -torch.inf).amax(1)
        columns[f"first_{name}"] = values[:, 0]
        columns[f"last_{name}"] = values.gather(1, last)[:, 0]
        for edge in EDGES:
            columns[f"{name}_above_{edge}"] = ((values > edge) & mask).sum(1) / count
    product = (-candidates.logprobs * candidates.entropies).where(mask, 0.0)
    columns["mean_nll_entropy"] = product.sum(1) / count
    columns["is_ended"] = candidates.length.double() - 1 - last[:, 0]
    return columns


def sibling_columns(candidates: Candidates) -> dict[str, Tensor]:
    """How a row compares with the rollouts of its prompt, and how far these disagree."""
    sibling = (candidates.prompt[:, None] == candidates.prompt).double()
    share = sibling / sibling.sum(1, keepdim=True)
    columns = {}
    for name in ("mean_nll", "mean_entropy", "response_tokens"):
        own = candidates.values[:, FEATURES.index(name)]
        centre = share @ own
        columns[f"prompt_{name}"] = centre
        columns[f"{name}_beside_prompt"] = own - centre
        columns[f"{name}_spread"] = (share @ (own - centre).square()).sqrt()
    last = candidates.responses.gather(1, _last_content(candidates)[:, None])
    tokens = candidates.responses.where(candidates.mask, -1)
    text = tokens.unique(dim=0, return_inverse=True)[1]
    columns["same_last_token"] = (share * (last == last.T)).sum(1)
    columns["same_response"] = (share * (text[:, None] == text)).sum(1)
    columns["agreement_of_prompt"] = share @ columns["same_last_token"]
    return columns


def kind_columns(candidates: Candidates) -> dict[str, Tensor]:
    """The kind of question, for data sets that name kinds."""
    return {
        f"is_{name or 'unnamed'}": (candidates.kind == kind).double()
        for kind, name in enumerate(candidates.kind_names)
    }


def word_columns(candidates: Candidates) -> dict[str, Tensor]:
    """The last word of the response, as one of 32 classes of token ids."""
    last = candidates.responses.gather(1, _last_content(candidates)[:, None])[:, 0]
    return {f"last_word_{kind}": (last % 32 == kind).double() for kind in range(32)}


def joined(*parts: Columns) -> Columns:
    """Return the columns of several groups together."""

    def columns(candidates: Candidates) -> dict[str, Tensor]:
        return {name: values for part in parts for name, values in part(candidates).items()}

    return columns


ALL_COLUMNS = joined(paper_columns, token_columns, sibling_columns, kind_columns)


def _last_content(candidates: Candidates) -> Tensor:
    """Return the position of the last token that is no end token [candidate]."""
    last = candidates.length - 1
    ends = torch.tensor(candidates.end_ids)
    is_end = torch.isin(candidates.responses.gather(1, last[:, None])[:, 0], ends)
    return (last - is_end.long()).clamp_min(0)
