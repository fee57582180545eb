"""The folders of benchmarks, from the values of `--data`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bas_opd.errors import ConfigError
from bas_opd.evaluate.benchmarks import benchmark


def sources(given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return benchmark -> folder or hub id, for every name.

    What is given is a folder with one folder for each benchmark, or NAME=FOLDER, or NAME=HUB_ID;
    the named come before the others, and the first folder before the next.
    """
    named: dict[str, str] = {}
    parents: list[Path] = []
    for each in given:
        folder = Path(os.path.expanduser(each))
        name, equals, place = each.partition("=")
        if folder.is_dir():
            parents.append(folder)
        elif equals:
            named[benchmark(name.strip()).name] = _place(place)
        else:
            raise ConfigError(
                f"--data {each} is no folder. Name a folder with one folder for each benchmark, or "
                "NAME=FOLDER, or NAME=HUB_ID."
            )
    return {name: named.get(name) or _found(name, parents) for name in names}


def _place(given: str) -> str:
    """Return a place with its ~ spelt out; a hub id stays as it is."""
    folder = Path(os.path.expanduser(given))
    return str(folder) if folder.is_dir() else given


def _found(name: str, parents: Sequence[Path]) -> str:
    wanted = benchmark(name)
    places = [parent / name for parent in parents]
    for place in places:
        if place.is_dir():
            return str(place)
    looked = f" There is no folder {' or '.join(map(str, places))}." if places else ""
    raise ConfigError(
        f"The folder of {wanted.title} was not given.{looked} Add --data {name}=FOLDER. "
        f"{wanted.obtain}"
    )
