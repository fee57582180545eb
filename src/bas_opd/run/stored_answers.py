"""About how much disk the stored answers of a served teacher take, known before a run."""

from __future__ import annotations

from safetensors.torch import save

from bas_opd.budget import query_budget
from bas_opd.config.schema import Config
from bas_opd.run.forecast import Batches, candidate_counts
from bas_opd.serving.scoring import Answer, ScoringRequest
from bas_opd.teacher.server_teacher import TopLogprobs

MEAN_RESPONSE = 87
"""Tokens of a mean response in the paper: 2,167,850 scored in 24,864 calls (Table 7)."""


def assumed_response(config: Config) -> int:
    """Return the assumed length of every response."""
    return min(MEAN_RESPONSE, config.rollout.max_response_tokens)


def answers_bytes(config: Config, rows: int) -> int:
    """Return what the answers about `rows` rows take; 0 without a served teacher."""
    if config.teacher.server is None:
        return 0
    return rows * file_bytes(assumed_response(config), config.distill.k)


def answers_until_checkpoint(config: Config, batches: Batches) -> int:
    """Return what the answers take that are stored before the first checkpoint."""
    if config.queries is None:
        return 0
    ratio, before = config.queries.query_ratio, batches[: config.run.checkpoint_every]
    rows = sum(query_budget(ratio, count) for count in candidate_counts(config, before))
    return answers_bytes(config, rows)


def file_bytes(tokens: int, k: int) -> int:
    """Return the size of a stored answer about a response, whatever it says."""
    asked = ScoringRequest(prompt=(), response=(0,) * tokens, image=b"", prompt_length=0, k=k)
    answer = Answer(ids=[[0] * k] * tokens, logprobs=[[0.0] * k] * tokens, sampled=[0.0] * tokens)
    return len(save(TopLogprobs.of(answer, asked).tensors()))
