"""The privileged teacher: what it says about selected rows, and how it follows the student."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bas_opd.teacher.self_teacher import FrozenTeacher, LocalScores, SelfTeacher, TeacherMode
from bas_opd.teacher.server_teacher import ServedTeacher
from bas_opd.types import BudgetKind, Costs, Part, Rollouts, TeacherScores


class Teacher(Protocol):
    """Scores the response tokens of chosen rows, and may follow the student."""

    def score(self, rollouts: Rollouts, rows: Sequence[int]) -> TeacherScores:
        """Score exactly `rows` (Alg. 1, line 11); no rows, no computation."""
        ...

    def costs(self, rollouts: Rollouts, rows: Sequence[int], kind: BudgetKind) -> Costs | None:
        """Return what querying each of `rows` would cost in tokens of a kind; None if not known.

        Asked for budgets in tokens only, and before anything is computed.
        """
        ...

    def follow(self) -> None:
        """Follow the student after a valid update (Alg. 1, line 13)."""
        ...

    def close(self) -> None:
        """Free what the teacher holds."""
        ...

    def parts(self) -> Mapping[str, Part]:
        """Return what a checkpoint holds of it, by name; nothing if it never changes."""
        ...


def query_costs(
    teacher: Teacher, rollouts: Rollouts, rows: Sequence[int], kind: BudgetKind
) -> Costs | None:
    """Return what a teacher says that rows cost; in calls there is nothing to ask."""
    return None if kind == "calls" else teacher.costs(rollouts, rows, kind)


__all__ = [
    "FrozenTeacher",
    "LocalScores",
    "SelfTeacher",
    "ServedTeacher",
    "Teacher",
    "TeacherMode",
    "query_costs",
]
