"""Functions of transformers that choose, at each call, between its own and ours."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

MODULES = tuple(
    f"transformers.models.{family}.modeling_{family}"
    for family in ("qwen3_5", "qwen3_vl", "qwen2_5_vl")
)


def layers() -> Iterator[ModuleType]:
    """Yield the modules with the layers of all families, where they are loaded."""
    yield from (sys.modules[name] for name in MODULES if name in sys.modules)


def qwen35_layers() -> ModuleType | None:
    """Return the module with the layers of Qwen3.5, where it is loaded."""
    return sys.modules.get(MODULES[0])


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


@contextmanager
def without_replacements() -> Iterator[None]:
    """Let all layers compute as transformers has them."""
    owners = [
        owner
        for module in layers()
        for owner in (module, *(each for each in vars(module).values() if inspect.isclass(each)))
    ]
    replaced = [
        (owner, name, each)
        for owner in owners
        for name, each in vars(owner).items()
        if hasattr(each, "reference")
    ]
    for owner, name, each in replaced:
        setattr(owner, name, each.reference)
    try:
        yield
    finally:
        for owner, name, each in replaced:
            setattr(owner, name, each)
