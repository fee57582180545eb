"""What is known of the queries of a run before it starts. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, Context, Decimal

from bas_opd.budget import query_budget
from bas_opd.config.schema import Config
from bas_opd.data.order import PromptStream
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError
from bas_opd.select.rules import policy_rule
from bas_opd.types import Example

Batches = Sequence[Sequence[Example]]
CropLength = Callable[[Example], int]
"""Returns the tokens of the prompt that the teacher sees of an example."""


def planned_batches(config: Config, data: PreparedSet, steps: int) -> list[tuple[Example, ...]]:
    """Return the examples of every step."""
    prompts = PromptStream(
        data.examples, per_step=config.rollout.prompts_per_step, seed=config.run.seed
    )
    return [prompts.take().examples for _ in range(steps)]


def has_view(config: Config, example: Example) -> bool:
    """Return whether the teacher has a view of an example that the student has not."""
    if config.method.name == "opsd":
        return example.has_answer
    return example.has_crop and config.needs_crops


def candidate_counts(config: Config, batches: Batches) -> list[int]:
    """Return how many candidates each step has, if no response is empty."""
    examples = {id(example): example for batch in batches for example in batch}
    seen = {key: has_view(config, example) for key, example in examples.items()}
    return [config.rollout.per_prompt * sum(seen[id(e)] for e in batch) for batch in batches]


def check_queries(config: Config, batches: Batches, crop_length: CropLength | None = None) -> None:
    """Refuse a budget that pays for no query at any step, however short or long responses are.

    What prompts cost in processed tokens is known with `crop_length` only.
    """
    if config.queries is None:
        return
    ratio = config.queries.query_ratio
    shares = _shares(config, batches, crop_length)
    if any(query_budget(ratio, full) >= least for least, full in shares):
        return
    if not shares:
        return  # without any crop, which the check of the data names
    needed = min(smallest_ratio(least, full) for least, full in shares)
    raise ConfigError(
        f"select.query_ratio is {ratio}, so K pays for no query at any step: the teacher would "
        f"never be asked, and nothing learned. Set select.query_ratio to at least {needed:f}, or "
        "raise rollout.prompts_per_step."
    )


def seldom_asks(config: Config, batches: Batches, crop_length: CropLength | None = None) -> str:
    """Return in how many steps K pays for no query, if those are most; nothing otherwise."""
    shares = _shares(config, batches, crop_length)
    ratio = config.select.query_ratio
    empty = sum(n for (least, full), n in shares.items() if query_budget(ratio, full) < least)
    if 2 * empty <= shares.total():
        return ""
    return (
        f"In {empty:,} of {shares.total():,} steps K pays for no query, and nothing is learned: "
        f"select.query_ratio is {ratio}. Raise it, or rollout.prompts_per_step."
    )


def _shares(
    config: Config, batches: Batches, crop_length: CropLength | None
) -> Counter[tuple[int, int]]:
    """Count steps by the least that a query costs, and the most that all of them can."""
    counts = candidate_counts(config, batches)
    longest = config.rollout.max_response_tokens
    if config.select.budget == "calls":
        return Counter((1, rows) for rows in counts if rows)
    if config.select.budget == "scored_tokens" or crop_length is None:
        return Counter((1, rows * longest) for rows in counts if rows)
    shares = Counter[tuple[int, int]]()
    for rows, batch in zip(counts, batches, strict=True):
        prompts = [crop_length(example) for example in batch if example.has_crop]
        if full := sum(prompts) + rows * (longest - 1):
            shares[min(prompts, default=1), full] += 1
    return shares


def smallest_ratio(least: int, full: int) -> Decimal:
    """Return the smallest share of `full` that is at least `least`, in four digits."""
    return Context(prec=4, rounding=ROUND_CEILING).divide(Decimal(least), Decimal(full))


def never_ranks(config: Config, batches: Batches) -> str:
    """Return why a policy that learns would rank no row of this run; nothing where it can."""
    select = config.queries
    if select is None or not policy_rule(select.policy).learns:
        return ""
    # The labels of the last step come too late.
    labels = candidate_counts(config, batches)[:-1]
    if select.budget == "calls":  # in tokens, any number of candidates may fit
        budgets = {count: query_budget(select.query_ratio, count) for count in set(labels)}
        labels = [budgets[count] for count in labels]
    held = sum(labels)
    if held >= select.replay_start:
        return ""
    return (
        f"The {select.policy} policy will rank no row of this run: it learns from "
        f"{select.replay_start} labels on (select.replay_start), and its steps bring at most "
        f"{held} before the last. All rows will be drawn at random. Lower select.replay_start or "
        "take more steps."
    )
