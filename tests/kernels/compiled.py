"""Compile every kernel for GPUs that need not be there, and print what each takes of one.

    python tests/kernels/compiled.py

It runs without Triton's interpreter, so the tests start it as a process of its own.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (80, 90)
FLOAT, HALF, LONG, INT, SHORT = "*fp32", "*bf16", "*i64", "*i32", "i32"


def kernels() -> list[tuple[str, str, list[str], dict[str, int]]]:
    """Return module, kernel, the types of its arguments, and its constants at the 4B shape."""
    convolution, race = "bas_opd.model.triton_convolution", "bas_opd.rollout.triton_race"
    loss, delta = "bas_opd.distill.triton_kernels", "bas_opd.model.triton_delta"
    found: list[tuple[str, str, list[str], dict[str, int]]] = []
    for given in (HALF, FLOAT):
        tile = {"width": 4, "tile": 8, "wide": 64}
        found += [
            (convolution, "forward", [given, FLOAT, given, *[SHORT] * 5], tile),
            (
                convolution,
                "backward",
                [given, FLOAT, given, given, FLOAT, *[SHORT] * 8],
                {"width": 4, "span": 64, "tile": 8, "wide": 64},
            ),
            (
                convolution,
                "step",
                [given, given, FLOAT, given, *[SHORT] * 3],
                {"width": 4, "kept": 4, "wide": 64},
            ),
            (
                delta,
                "decode",
                [*[given] * 3, FLOAT, given, FLOAT, given, "fp32", "fp32"],
                {"width": 128, "wide": 128, "tile": 32},
            ),
            (loss, "scale_softmax", [*[FLOAT] * 3, given, *[SHORT] * 2], {"width": 4096}),
        ]
    sizes = [SHORT] * 3
    return [
        *found,
        (loss, "summarise", [*[FLOAT] * 3, *sizes], {"tile": 32, "width": 64}),
        (race, "summarise", [*[FLOAT] * 5, *sizes, "fp32"], {"width": 4096}),
        (
            race,
            "run",
            [*[FLOAT] * 2, *[LONG] * 3, *[FLOAT] * 3, INT, FLOAT, *sizes, SHORT, "fp32"],
            {"width": 4096, "many": 64},
        ),
        (
            race,
            "finish",
            [*[LONG] * 2, *[FLOAT] * 4, INT, FLOAT, LONG, *[FLOAT] * 2, *[SHORT] * 3],
            {"many": 64},
        ),
    ]


def usage(kernel: Any, folder: Path) -> dict[str, int]:
    """Return registers and stack of a thread, and the shared memory of a program."""
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run(
        [tool, "-res-usage", path], check=True, capture_output=True, text=True
    ).stdout
    registers, stack = (int(re.findall(rf"{name}:(\d+)", said)[-1]) for name in ("REG", "STACK"))
    return {"registers": registers, "stack": stack, "shared": kernel.metadata.shared}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for module, name, types, constants in kernels():
            function = getattr(importlib.import_module(module), name)
            names = function.arg_names
            signature = dict(zip(names, [*types, *["constexpr"] * len(constants)], strict=True))
            fixed = {(names.index(key),): value for key, value in constants.items()}
            source = ASTSource(fn=function, signature=signature, constexprs=fixed)
            for architecture in ARCHITECTURES:
                target = GPUTarget("cuda", architecture, 32)
                found = usage(triton.compile(source, target=target), Path(folder))
                label = {"kernel": f"{module}.{name}", "types": types, "sm": architecture}
                print(json.dumps({**label, **found}), flush=True)


if __name__ == "__main__":
    main()
