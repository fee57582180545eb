"""The import graph of the package: no cycle between rooms, and no room reaches above itself."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "bas_opd"
LAYERS = (
    {"errors", "text", "disk", "files", "types", "budget", "rewards", "validation"},
    {"compute", "stats", "answers", "serving", "model", "distill", "select"},
    {"config", "data", "teacher", "rollout", "learn"},
    {"algorithm", "methods"},
    {"run"},
    {"evaluate", "audit", "integrations"},
    {"report"},
    {"reproduce", "commands", "bench"},
    {"cli"},
)
"""Rooms from the ground up: each may import those below it, and those beside it without a cycle."""
STAGES = {"select", "distill", "rollout", "teacher", "model"}
BELOW_A_STAGE = {
    "types",
    "errors",
    "budget",
    "rewards",
    "disk",
    "files",
    "text",
    "model",
    "compute",
    "serving",
}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module by its dotted name below the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


NAMES = {name for name, _ in modules()}


def room_of(module: str) -> str:
    return module.partition(".")[0]


@cache
def imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, lazily too, but not for types alone."""
    return {name: set(_imported(path)) for name, path in modules()}


def _imported(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in [f"{node.module}.{alias.name}" for alias in node.names]:
                yield from _within(name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from _within(alias.name)


def _within(name: str) -> Iterator[str]:
    """The module of the package that a dotted name is, or is in."""
    package, _, inner = name.partition(".")
    if package != "bas_opd":
        return
    while inner and inner not in NAMES:
        inner = inner.rpartition(".")[0]
    if inner:
        yield inner


def room_imports() -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {room_of(name): set() for name in NAMES if name}
    for module, targets in imports().items():
        if module:
            rooms[room_of(module)] |= {room_of(target) for target in targets}
    return {room: targets - {room} for room, targets in rooms.items()}


def test_every_room_has_its_layer() -> None:
    listed = Counter(room for layer in LAYERS for room in layer)
    assert set(listed) == {room for room in room_imports() if room != "__main__"}
    assert max(listed.values()) == 1


def test_no_room_imports_one_above_it() -> None:
    level = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    upward = [
        (module, target)
        for module, targets in imports().items()
        for target in targets
        if module not in ("", "__main__") and level[room_of(target)] > level[room_of(module)]
    ]
    assert not upward


def test_no_two_rooms_import_each_other_on_any_way_round() -> None:
    assert find_cycle(room_imports()) == []


def test_no_module_imports_itself_on_any_way_round() -> None:
    # A package imports its own modules to offer their names; that is no use of them.
    packages = {name for name, path in modules() if path.name == "__init__.py"}
    plain = {m: targets - packages for m, targets in imports().items() if m not in packages}
    assert find_cycle(plain) == []


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_a_stage_imports_types_model_and_compute_and_nothing_above(stage: str) -> None:
    assert room_imports()[stage] <= BELOW_A_STAGE - {stage}


def test_only_objectives_join_the_learner_with_a_stage() -> None:
    assert room_imports()["learn"] <= BELOW_A_STAGE | {"distill"}
    joined = {
        module
        for module, targets in imports().items()
        if room_of(module) == "learn" and any(room_of(target) == "distill" for target in targets)
    }
    assert joined == {"learn.distillation"}


def test_the_package_imports_neither_tests_nor_recipes() -> None:
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(n.partition(".")[0] in ("tests", "recipes") for n in names), name


def test_no_room_has_two_modules_of_one_name() -> None:
    names = Counter(
        (path.relative_to(PACKAGE).parts[0], path.name)
        for _, path in modules()
        if path.name != "__init__.py" and path.parent != PACKAGE
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("room", ["report", "cli", "run.verify", "commands.watch", "stats"])
def test_a_room_that_only_reads_reaches_no_torch_at_import(room: str) -> None:
    prefix = room + "."
    wanted = [name for name in NAMES if name == room or name.startswith(prefix)]
    lines = [f"import bas_opd.{name}" for name in sorted(wanted)]
    check = "import sys; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, check])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


ALONE = """
import importlib, json, runpy, sys
from importlib.machinery import PathFinder

hidden, modules, commands = json.loads(sys.argv[1])


class Finder:
    \"\"\"Finds what the others find, but for what is hidden.\"\"\"

    others = tuple(sys.meta_path)

    @classmethod
    def find_distributions(cls, *context):
        found = PathFinder.find_distributions(*context)
        return (each for each in found if each.metadata["Name"].replace("-", "_") not in hidden)

    @classmethod
    def find_spec(cls, name, *place):
        if name.partition(".")[0] not in hidden:
            found = (each.find_spec(name, *place) for each in cls.others)
            return next((spec for spec in found if spec is not None), None)


sys.meta_path[:] = [Finder]
missing = {}
for module in modules:
    try:
        importlib.import_module(f"bas_opd.{module}")
    except ImportError as error:
        missing[module] = str(error)
print(json.dumps(missing))
for command in commands:
    sys.argv = ["bas-opd", command]
    try:
        runpy.run_module("bas_opd", run_name="__main__")
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""
"""Imports modules where some packages are not installed, and then runs commands."""
OTHERS = {
    "bitsandbytes",
    "fla",
    "liger_kernel",
    "orda_kernel",
    "requests",
    "torchvision",
    "triton",
    "verl",
}
"""Packages that some module may use, and that come with none of ours."""
NEED_TRITON = {
    "compute.triton_trial",
    "distill.triton_kernels",
    "model.triton_attention",
    "model.triton_chunks",
    "model.triton_convolution",
    "model.triton_delta",
    "model.triton_head",
    "model.triton_pointwise",
    "rollout.triton_race",
}
NEED_A_TRAINER = {"integrations.trl", "integrations.trl_server", "integrations.verl"}


def test_every_extra_is_optional() -> None:
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [each for extra in project["optional-dependencies"].values() for each in extra]
    extras = {re.split(r"[^\w-]", each)[0] for each in wanted}
    assert {"peft", "trl", "vllm"} <= extras
    inner = sorted(NAMES - {"", "__main__"})
    commands = ["--help", "doctor"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, json.dumps([sorted(extras | OTHERS), inner, commands])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, _, shown = done.stdout.partition("\n")
    missing = json.loads(first)
    assert missing.keys() == NEED_TRITON | NEED_A_TRAINER, missing
    assert all("Install it" in missing[module] for module in NEED_A_TRAINER)
    assert "Usage: bas-opd" in shown
    found = {line.split()[1] for line in shown.splitlines() if "not installed" in line}
    assert extras <= found, "doctor"


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the first way round, or nothing."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if found := visit(target, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])
