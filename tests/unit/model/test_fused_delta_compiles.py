"""The kernels of linear attention are compiled for GPUs that need not be there.

Needs Triton, without its interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import pytest

from bas_opd.model.fused_delta import PRECISION, WARPS

CAN_COMPILE = os.environ.get("TRITON_INTERPRET") != "1" and bool(importlib.util.find_spec("triton"))
pytestmark = pytest.mark.skipif(not CAN_COMPILE, reason="needs Triton, not interpreted")

GIVEN = {"query", "key", "value", "strength", "out"}
"""What, with its gradient, has the type of the inputs; other tensors are fp32."""
CONSTANTS = {
    "heads": 32,
    "width": 128,
    "wide": 128,
    "chunk": 64,
    "rows": 32,
    "tile": 32,
    "starts": True,
    "ends": True,
    "normalises": True,
    "precision": PRECISION,
}
NUMBERS = {"length": "i32", "chunks": "i32", "scale": "fp32", "epsilon": "fp32"}


def compiled(name: str, dtype: str, capability: int) -> Any:
    triton: Any = importlib.import_module("triton")
    targets: Any = importlib.import_module("triton.backends.compiler")
    kernels: Any = importlib.import_module("bas_opd.model.triton_chunks")
    kernel = getattr(kernels, name)
    constants = {**CONSTANTS, "tile": 64 if name == "read" else 32}
    kinds = {}
    for each in kernel.arg_names:
        tensor = f"*{dtype if each.removeprefix('of_') in GIVEN else 'fp32'}"
        kinds[each] = "constexpr" if each in constants else NUMBERS.get(each, tensor)
    return triton.compile(
        triton.compiler.ASTSource(
            kernel,
            kinds,
            {(kernel.arg_names.index(n),): x for n, x in constants.items() if n in kinds},
            {(i,): [["tt.divisibility", 16]] for i, n in enumerate(kinds) if kinds[n][0] == "*"},
        ),
        target=targets.GPUTarget("cuda", capability, 32),
        options={"num_warps": WARPS[name], "num_stages": 1},
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", WARPS)
def test_a_kernel_uses_no_wgmma_and_little_shared_memory(name: str, dtype: str) -> None:
    """Registers as operands of wgmma are what Hopper's compilers have been wrong about."""
    found = compiled(name, dtype, 90)
    assert ("mma.sync" in found.asm["ptx"]) == (name != "sum_back")
    assert "wgmma" not in found.asm["ptx"]
    assert found.metadata.shared <= 48 * 1024


@pytest.mark.parametrize("name", WARPS)
def test_a_kernel_compiles_for_ampere(name: str) -> None:
    assert compiled(name, "bf16", 80).metadata.shared <= 48 * 1024
