"""What is known of each policy by its name alone, so that a run can be checked from its records.

Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from bas_opd.errors import ConfigError

PolicyName = Literal["full", "random", "entropy", "learned", "regressed", "covering"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """How a policy chooses rows, as far as the records of a step can show it."""

    name: PolicyName
    asks_everything: bool = False
    draws_at_random: bool = False
    """Whether rows are drawn at random: always, or until the policy has learned."""
    ranks_by: tuple[str, str] | None = None
    """The feature that rows are ranked by, with and without known entropies."""
    learns: bool = False
    """Whether rows are ranked by predictions once the replay holds enough labels."""
    score: str = ""
    """What the score of a row is; nothing where rows have none."""
    covers: bool = False
    """Whether rows are always chosen to cover the prompts; other policies may be told to."""

    def label(self, query_ratio: Decimal) -> str:
        """Return the policy and its budget in the paper's words: full, learned-25, random-10."""
        if self.asks_everything:
            return self.name
        return f"{self.name}-{(100 * query_ratio).normalize():f}"


RULES: dict[str, PolicyRule] = {
    rule.name: rule
    for rule in (
        PolicyRule(
            name="covering",
            draws_at_random=True,
            learns=True,
            covers=True,
            score="predicted utility x tokens",
        ),
        PolicyRule(name="learned", draws_at_random=True, learns=True, score="predicted utility"),
        PolicyRule(
            name="regressed",
            draws_at_random=True,
            learns=True,
            score="square root of predicted utility",
        ),
        PolicyRule(name="entropy", ranks_by=("mean_entropy", "mean_nll"), score="entropy"),
        PolicyRule(name="random", draws_at_random=True),
        PolicyRule(name="full", asks_everything=True),
    )
}
"""Policies by name. Of two, the later one is the reference that the other is compared with."""


def policy_rule(name: str) -> PolicyRule:
    """Return the rule of a policy."""
    if name not in RULES:
        *others, last = reversed(RULES)
        raise ConfigError(
            f"There is no selection policy {name!r}; choose {', '.join(others)} or {last}."
        )
    return RULES[name]


def reference_order(name: str) -> int:
    """Return the place of a policy in comparisons: the higher one is the reference."""
    return list(RULES).index(policy_rule(name).name)


def ranked(rows: Sequence[int], scores: Mapping[int, float]) -> list[int]:
    """Order rows by falling score, the lower row first on ties, rows without a score last."""
    return sorted(rows, key=lambda row: (-scores.get(row, -math.inf), row))
