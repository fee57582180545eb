"""The privileged teacher: what it says about selected rows, and how it follows the student."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bas_opd.teacher.self_teacher import LocalScores, SelfTeacher, TeacherMode
from bas_opd.types import Part, Rollouts, TeacherScores


class Teacher(Protocol):
    """Scores the response tokens of chosen rows, and may follow the student."""

    def score(self, rollouts: Rollouts, rows: Sequence[int]) -> TeacherScores:
        """Score exactly `rows` (Alg. 1, line 11); no rows, no computation."""
        ...

    def follow(self) -> None:
        """Follow the student after a valid update (Alg. 1, line 13)."""
        ...

    def parts(self) -> Mapping[str, Part]:
        """Return what a checkpoint holds of it, by name; nothing if it never changes."""
        ...


__all__ = ["LocalScores", "SelfTeacher", "Teacher", "TeacherMode"]
