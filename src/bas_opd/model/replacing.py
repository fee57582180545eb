"""Functions of transformers that choose, at each call, between its own and ours."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

MODULE = "transformers.models.qwen3_5.modeling_qwen3_5"


def qwen35_layers() -> ModuleType | None:
    """Return the module with the layers of Qwen3.5, where it is loaded."""
    return sys.modules.get(MODULE)


def replace(owner: Any, name: str, choosing: Callable[[Any], Any]) -> None:
    """Replace a function by what `choosing` makes of it, once; the original is its `reference`.

    What another version of transformers lacks is left out.
    """
    found = getattr(owner, name, None)
    if found is not None and not hasattr(found, "reference"):
        setattr(owner, name, standing_for(found, choosing(found)))


def standing_for(reference: Any, run: Any) -> Any:
    """Return a function under the name of another, which it knows as its `reference`."""
    named: Any = functools.wraps(reference)(run)
    named.reference = reference
    return named
