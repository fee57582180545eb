"""The errors of this package; each is also the built-in error that a caller would expect.

A message is complete sentences: what happened, where (file, row or step), what to do next.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bas_opd.compute.rendezvous import Rendezvous

_ADVICE = {
    errno.ENOENT: "Check the path, and that its folder exists.",
    errno.EISDIR: "Name a file.",
    errno.ENOTDIR: "Check the path: a part of it is a file, not a folder.",
    errno.EACCES: "Change the permissions, or choose another place.",
    errno.EPERM: "Change the permissions, or choose another place.",
    errno.EROFS: "Choose a place that can be written to.",
    errno.ENOSPC: "Free some space, or choose another place.",
    errno.ENOTEMPTY: "Another command has written to it. Choose another place.",
    errno.ELOOP: "Remove one of the links.",
}


class BasOpdError(Exception):
    """Base of all errors whose message is written for the user."""

    exit_code = 1
    is_told = False
    """Whether all processes of a run raise it together."""
    rendezvous: Rendezvous | None = None
    """Where all processes of a run end with it, so that the leader alone prints it."""


class ConfigError(BasOpdError, ValueError):
    """A setting is unknown, missing, or conflicts with another."""

    exit_code = 2


class DataError(BasOpdError, ValueError):
    """A dataset, one of its rows, or one of its images cannot be used."""


class ModelError(BasOpdError, ValueError):
    """A model folder or its processor cannot be used."""


class BudgetError(BasOpdError, ValueError):
    """More teacher queries were requested than the budget allows."""


class CheckpointError(BasOpdError, RuntimeError):
    """A checkpoint is damaged, incomplete, or does not belong to this run."""


class OutOfMemory(BasOpdError, MemoryError):  # noqa: N818
    """The smallest possible batch does not fit into memory."""


class PreemptionError(BasOpdError):
    """The run was interrupted; the same command resumes it."""

    exit_code = 75


class RankError(BasOpdError, RuntimeError):
    """Another process of the run failed, has ended, or cannot be reached."""

    exit_code = 70


class FailedRank(RankError):  # noqa: N818
    """Something that was not foreseen failed on one rank."""

    rank = 0


class LostRanks(RankError):  # noqa: N818
    """The ranks can exchange nothing any more, not even an error."""


class Unanswered(LostRanks):
    """A rank waited for the others in vain; it may not know why."""


class RunDirectoryError(BasOpdError, RuntimeError):
    """A run directory is in use, or contains something that would be lost."""

    exit_code = 3


def explain_failure(error: OSError) -> str:
    """Return what the system refused, of which file, and what to do."""
    what = os.strerror(error.errno) if error.errno else str(error).rstrip(".")
    place = " and ".join(str(name) for name in (error.filename, error.filename2) if name)
    advice = _ADVICE.get(error.errno or 0, "Check the disk; --debug shows more.")
    return f"{place}: {what}. {advice}" if place else f"{what}. {advice}"
