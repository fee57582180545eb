"""A served teacher that one process asks and all learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bas_opd.compute.world import World
from bas_opd.model.batches import group_by_prompt, shares
from bas_opd.teacher.server_teacher import ServedScores, ServedTeacher
from bas_opd.teacher.student_pass import StudentPass
from bas_opd.types import BudgetKind, Costs, Part, Rollouts


class LedTeacher:
    """The leader asks the server; each rank gets the answers of the rows that it learns from.

    So the journal, the budget and the spend limit are those of one process. The server is what
    limits the speed, and the leader's requests are out in parallel already.
    """

    def __init__(
        self,
        teacher: ServedTeacher | None,
        world: World,
        device: torch.device,
        student: StudentPass | None = None,
    ) -> None:
        """`teacher` is the leader's; the other ranks have none. `device` is this rank's.

        With a pass of the student, the server is asked at its likeliest tokens.
        """
        self._teacher, self._world, self._device = teacher, world, device
        self._student = student

    @property
    def _own(self) -> ServedTeacher:
        assert self._teacher is not None
        return self._teacher

    def costs(self, rollouts: Rollouts, rows: Sequence[int], kind: BudgetKind) -> Costs | None:
        """Return what the leader's teacher says that rows cost."""
        return self._world.led(lambda: self._own.costs(rollouts, rows, kind))

    def score(self, rollouts: Rollouts, rows: Sequence[int]) -> ServedScores:
        """Return what the server says of `rows`: the answers of this rank's, the counts of all."""
        likeliest = None
        if self._student is not None and rows:
            likeliest = self._student.likeliest(rollouts, rows)

        def ask() -> list[ServedScores]:
            scores = self._own.score(rollouts, rows, likeliest)
            # The learner deals the rows that were answered in the same way.
            groups = group_by_prompt([row for row in rows if row in scores.answers], rollouts)
            dealt = shares(groups, self._world.size)
            return [scores.of([row for group in each for row in group.rows]) for each in dealt]

        return replace(self._world.dealt(ask), device=self._device)

    def follow(self) -> None:
        """Do nothing: this teacher never changes."""

    def close(self) -> None:
        """Do nothing: this teacher holds nothing between steps."""

    def parts(self) -> dict[str, Part]:
        """Return nothing: a checkpoint holds what changes."""
        return {}
