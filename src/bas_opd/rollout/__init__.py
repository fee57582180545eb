"""y ~ p_theta for the whole batch, with the log-probabilities and entropies of the draw."""

from bas_opd.rollout.ahead import AheadEngine
from bas_opd.rollout.engine import RolloutEngine
from bas_opd.rollout.greedy import Greedy
from bas_opd.rollout.sampler import Sampler, SamplingSettings

__all__ = ["AheadEngine", "Greedy", "RolloutEngine", "Sampler", "SamplingSettings"]
