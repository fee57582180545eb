"""The curves of a run, which consoles, pages and trackers show. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bas_opd.run.record import (
    GradedRecord,
    PolicyRecord,
    QueryRecord,
    StepRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One number of a step."""

    key: str
    """Its name in a tracker."""
    name: str
    """Its name on a console."""
    title: str = ""
    """Its name on a page; one without is sent to trackers alone."""
    unit: str = ""
    note: str = ""
    value: Callable[[StepRecord], float | None]
    idle: float | None = None
    """What it is where nothing happened; a curve that never left it is not drawn."""
    idle_words: str = ""
    """What is said in place of such a curve."""
    is_share: bool = False
    repeats: str = ""
    """Key of a curve that it may be equal to; then that one is drawn alone."""
    hidden_for: tuple[type[StepRecord], ...] = ()
    """Steps of which it says nothing, though they have it."""

    def of(self, steps: Sequence[StepRecord]) -> list[float | None]:
        """Return its value at each step; what is not known or not finite is None."""
        values = [self.value(step) for step in steps]
        return [v if v is not None and math.isfinite(v) else None for v in values]


def drawn_curves(steps: Sequence[StepRecord]) -> dict[Curve, list[float | None]]:
    """Return the curves of a run that are worth drawing, in their order, with their values."""
    values = {curve.key: curve.of(steps) for curve in CURVES if curve.title}
    return {
        curve: values[curve.key]
        for curve in CURVES
        if curve.title and not any(isinstance(step, curve.hidden_for) for step in steps[:1])
        if set(values[curve.key]) - {None, curve.idle}
        if values[curve.key] != values.get(curve.repeats)
    }


def idle_words(steps: Sequence[StepRecord]) -> list[str]:
    """Return sentences on what could have happened in a run, and never did."""
    return [c.idle_words for c in CURVES if c.idle_words and set(c.of(steps)) - {None} == {c.idle}]


def _reward(step: StepRecord) -> float | None:
    return fmean(step.rewards) if isinstance(step, PolicyRecord) and step.rewards else None


def _right(step: StepRecord) -> float | None:
    if not isinstance(step, GradedRecord) or not step.grades:
        return None
    return step.right / len(step.grades)


def _deferred(step: StepRecord) -> float | None:
    if not isinstance(step, GradedRecord) or not step.grades:
        return None
    return step.deferred / len(step.grades)


def _kept(step: StepRecord) -> float | None:
    if not isinstance(step, PolicyRecord) or not step.examples:
        return None
    return len(step.kept) / len(step.examples)


def _query(name: str) -> Callable[[StepRecord], float | None]:
    return lambda step: getattr(step, name) if isinstance(step, QueryRecord) else None


def _policy(name: str) -> Callable[[StepRecord], float | None]:
    return lambda step: getattr(step, name) if isinstance(step, PolicyRecord) else None


def _importance(name: str) -> Callable[[StepRecord], float | None]:
    return lambda step: None if step.importance is None else getattr(step.importance, name)


def _token_share(step: StepRecord) -> float | None:
    if not isinstance(step, QueryRecord) or not step.candidate_tokens:
        return None
    return step.scored_tokens / step.candidate_tokens


def _utility(place: int) -> Callable[[StepRecord], float | None]:
    return lambda step: step.mean_utility[place] if isinstance(step, QueryRecord) else None


CURVES = (
    Curve(
        key="reward/mean",
        name="reward",
        title="Mean reward",
        unit="mean reward",
        note="Of all rollouts of a step, those of dropped prompts included. A right one earns 1.",
        value=_reward,
    ),
    Curve(
        key="reward/right",
        name="right",
        title="Responses that are right",
        unit="share of responses",
        note="As graded for training, on other questions in every step.",
        value=_right,
        is_share=True,
        repeats="reward/mean",  # where a right response earns 1 and any other 0
    ),
    Curve(
        key="reward/deferred",
        name="deferred",
        title="Responses that no rule could read",
        unit="share of responses",
        note="They earn nothing, unless a judge decided.",
        value=_deferred,
        idle=0.0,
        idle_words="Every response could be read by rule.",
        is_share=True,
    ),
    Curve(
        key="policy/kl",
        name="KL",
        title="KL to the initial model",
        unit="mean of k3, nats",
        note="Mean over the tokens that were learned from.",
        value=_policy("kl"),
    ),
    Curve(
        key="loss",
        name="loss",
        title="Loss",
        unit="mean over tokens, nats",
        value=lambda step: step.loss,
        # At a ratio of 1 its value is that of the mean advantage, whatever its gradient.
        hidden_for=(PolicyRecord,),
    ),
    Curve(
        key="gradient_norm",
        name="gradient norm",
        title="Gradient norm",
        unit="norm",
        note="Before clipping, the mean of a step's updates.",
        value=lambda step: step.gradient_norm,
    ),
    Curve(
        key="policy/clip_share",
        name="clipped",
        title="Tokens that were clipped",
        unit="share of tokens",
        note="Tokens whose gradient the clipped ratio takes away.",
        value=_policy("clip_share"),
        idle=0.0,
        idle_words="No token was clipped.",
        is_share=True,
    ),
    Curve(
        key="importance/difference",
        name="log-prob difference",
        title="Distance from the distribution that drew",
        unit="mean over tokens, nats",
        note="Between the log-probs of the trainer before its update and those of the draw.",
        value=_importance("mean_difference"),
    ),
    Curve(
        key="importance/truncated",
        name="truncated weights",
        title="Importance weights that were truncated",
        unit="share of tokens",
        value=_importance("truncated_share"),
        idle=0.0,
        idle_words="No importance weight was truncated.",
        is_share=True,
    ),
    Curve(
        key="engine/logprob_gap",
        name="distance from vLLM",
        title="Log-probs of vLLM and of the trainer",
        unit="mean distance, nats",
        note="On the rows that the trainer rescored after sampling.",
        value=lambda step: None if step.engine is None else step.engine.logprob_gap,
    ),
    Curve(
        key="policy/kept",
        name="prompts kept",
        title="Prompts kept",
        unit="share of prompts drawn",
        note="The others were dropped: their rollouts were all right or all wrong, or there were "
        "enough.",
        value=_kept,
        idle=1.0,
        is_share=True,
    ),
    Curve(
        key="policy/rounds",
        name="rounds",
        title="Rounds of sampling",
        unit="batches of prompts drawn",
        value=lambda step: len(step.rounds) if isinstance(step, PolicyRecord) else None,
        idle=1.0,
    ),
    Curve(
        key="policy/entropy",
        name="entropy",
        title="Entropy of the policy",
        unit="mean of sampled tokens, nats",
        value=_policy("entropy"),
    ),
    Curve(
        key="response_tokens",
        name="response tokens",
        title="Length of responses",
        unit="mean tokens",
        value=lambda step: fmean(step.response_tokens) if step.response_tokens else None,
    ),
    Curve(
        key="utility/ranked",
        name="utility, ranked",
        title="Utility of rows chosen by score",
        value=_utility(0),
    ),
    Curve(
        key="utility/explored",
        name="utility, explored",
        title="Utility of explored rows",
        value=_utility(1),
    ),
    Curve(key="learning_rate", name="learning rate", value=lambda step: step.learning_rate),
    Curve(key="queries/calls", name="calls", value=_query("calls")),
    Curve(key="queries/budget", name="budget", value=_query("budget")),
    Curve(key="queries/scored_tokens", name="scored tokens", value=_query("scored_tokens")),
    Curve(key="queries/share_of_full_tokens", name="share of tokens", value=_token_share),
    Curve(key="policy/updates", name="updates", value=_policy("updates_made")),
    Curve(key="policy/logprob_gap", name="log-prob gap", value=_policy("logprob_gap")),
)
"""In the order in which they are shown."""
