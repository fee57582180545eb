"""What a user is told about errors that come from elsewhere: of the system, and of full memory."""

from __future__ import annotations

import sys

from bas_opd.errors import BasOpdError, explain_failure


def is_explained(error: Exception) -> bool:
    """Return whether a user can cause an error, so that a sentence tells more than a traceback."""
    return isinstance(error, BasOpdError | OSError | RecursionError) or _ran_out(error)


def explanation(error: Exception) -> str:
    """Return the sentence about an explained error."""
    if isinstance(error, BasOpdError):
        return str(error)
    if _ran_out(error):
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        return (
            f"Memory ran out{': ' if reason else ''}{reason}. Use smaller batches, smaller "
            "pictures, a smaller model or a device with more memory; --debug shows where."
        )
    if not isinstance(error, OSError):
        return "An input is nested too deeply to be read. Simplify it; --debug shows where."
    explained = explain_failure(error)
    return explained if error.filename else f"The output cannot be written: {explained}"


def _ran_out(error: Exception) -> bool:
    # An error of torch comes from code that has imported it.
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from bas_opd.compute.memory import ran_out

    return ran_out(error)
