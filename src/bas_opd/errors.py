"""What can go wrong, each error also being the standard one a caller would expect.

Every message is whole sentences: what happened, where (file, row or step), what to do next.
"""

from __future__ import annotations


class BasOpdError(Exception):
    """Any failure that this package explains to its user."""

    exit_code = 1


class ConfigError(BasOpdError, ValueError):
    """A setting is unknown, missing, or does not fit the others."""

    exit_code = 2


class DataError(BasOpdError, ValueError):
    """A dataset, a row of it, or one of its pictures cannot be used."""


class ModelError(BasOpdError, ValueError):
    """A model folder or its processor cannot be used."""


class BudgetError(BasOpdError, ValueError):
    """More teacher queries were asked for than the budget allows."""


class CheckpointError(BasOpdError, RuntimeError):
    """A checkpoint is damaged, incomplete, or does not belong to this run."""


class OutOfMemory(BasOpdError, MemoryError):  # noqa: N818
    """The smallest possible batch does not fit into memory."""


class PreemptionError(BasOpdError):
    """The run was asked to stop; the same command goes on where it stopped."""

    exit_code = 75


class RunDirectoryError(BasOpdError, RuntimeError):
    """A run directory is in use, or holds something that would be lost."""

    exit_code = 3
