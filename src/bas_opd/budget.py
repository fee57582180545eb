"""What a step may spend on queries: K and, of that, how much explores.

Both are computed in decimals, because the ratio a user writes is a decimal: in binary floats
`floor(0.29 * 100)` is 28 and `ceil(0.07 * 100)` is 8.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from numbers import Real

from bas_opd.errors import BudgetError, ConfigError
from bas_opd.types import Budget, BudgetKind, Costs


def step_budget(
    ratio: float | str | Decimal,
    rows: Collection[int],
    kind: BudgetKind = "calls",
    costs: Costs | None = None,
) -> Budget:
    """Return the budget of a step: the exact floor of a share of what all its rows would cost.

    In calls that is K = floor(rho * |C|) (Eq. 4).
    """
    if kind != "calls" and costs is None:
        raise ConfigError(
            f"The budget is in {kind}, but the teacher cannot say before it computes what a query "
            "costs in that unit. Set select.budget=calls, or use a teacher that can."
        )
    full = Budget(limit=0, kind=kind, costs=costs).spent(rows)
    return Budget(limit=query_budget(ratio, full), kind=kind, costs=costs)


def query_budget(ratio: float | str | Decimal, candidates: int) -> int:
    """K = floor(rho * |C|), exact for the decimal that `ratio` shows (Eq. 4; Alg. 1, line 4)."""
    exact = _decimal(ratio, "query ratio")
    if not 0 < exact <= 1:
        raise ConfigError(
            f"The query ratio is {ratio}, but must lie above 0 and at most at 1. "
            "Set the share of candidates the teacher may score, for example 0.25."
        )
    return _multiply(exact, _count(candidates, "candidates"), ROUND_FLOOR)


def smallest_ratio(least: int, full: int) -> Decimal:
    """Return the smallest share of `full` that is at least `least`, in four digits."""
    return Context(prec=4, rounding=ROUND_CEILING).divide(Decimal(least), Decimal(full))


def exploration_quota(epsilon: float | str | Decimal, budget: int) -> int:
    """Ke = ceil(epsilon * K), exact for the decimal that `epsilon` shows (Alg. 1, line 8)."""
    exact = _decimal(epsilon, "exploration ratio")
    if not 0 <= exact <= 1:
        raise ConfigError(
            f"The exploration ratio is {epsilon}, but must lie between 0 and 1. "
            "Set the share of the budget that is spent at random, for example 0.10."
        )
    return _multiply(exact, _count(budget, "budget"), ROUND_CEILING)


def _decimal(value: float | str | Decimal, name: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (str, Decimal, Real)):
        raise TypeError(
            f"The {name} is a {type(value).__name__}; give a float, a string or a Decimal."
        )
    try:
        # The shortest text of a float, also of a numpy one, is the decimal its user meant.
        exact = Decimal(str(value))
    except InvalidOperation:
        exact = None
    if exact is None or not exact.is_finite():
        raise ConfigError(f"The {name} {value!r} is no decimal number; write it like 0.25.")
    return exact


def _count(value: int, name: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"The number of {name} is a bool; give an int.")
    count = operator.index(value)
    if count < 0:
        raise BudgetError(f"The number of {name} is {count}; a count cannot be negative.")
    return count


def _multiply(ratio: Decimal, count: int, rounding: str) -> int:
    # The product is at most `count`. Rounding it to as many digits, in the direction in which it
    # is rounded to an integer anyway, keeps the result exact however many digits the ratio has.
    context = Context(prec=len(str(count)), rounding=rounding)
    return int(context.to_integral_value(context.multiply(ratio, Decimal(count))))
