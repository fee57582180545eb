"""Kernels are compiled for GPUs that need not be there, at the shape of Qwen3.5-4B."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bas_opd.model.attention import STAGES, TILE
from bas_opd.model.fused_delta import PRECISION, WARPS

HOPPER, AMPERE = 90, 80
FLOAT, HALF, LONG, SHORT, INT = "*fp32", "*bf16", "*i64", "*i32", "i32"
KIB = 1024
EVEN = {"stride", "vocabulary", "vocab", "width", "slots", "seen_from_row"} | {
    f"{states}_from_{place}" for states in ("key", "value") for place in ("row", "head", "slot")
}
"""Numbers that are multiples of 16 in a real model, as Triton notices when it starts a kernel."""
WITH_8_WARPS = {"choose_tokens", "sum_rest"}

Kernel = tuple[str, list[str], dict[str, Any]]
"""Its name, the types of its arguments, and its constants, which come last."""


def plain_kernels(given: str) -> list[Kernel]:
    """Kernels without products of matrices, for inputs of a type."""
    convolution, race = "model.triton_convolution", "rollout.triton_race"
    loss, head = "distill.triton_kernels", "model.triton_head"
    sizes = [INT] * 3
    tile = {"width": 4, "tile": 8, "wide": 64}
    drawing = [*[FLOAT] * 2, *[LONG] * 3, *[FLOAT] * 3, SHORT, FLOAT, *sizes, INT, "fp32"]
    finishing = [LONG, LONG, *[FLOAT] * 4, SHORT, FLOAT, LONG, FLOAT, FLOAT, *sizes]
    decoding = [*[given] * 3, *[FLOAT] * 3, given, *sizes, "fp32", "fp32"]
    layer = {"heads": 32, "shared": 2, "width": 128, "wide": 128, "tile": 32}
    joining = {"group": 4, "width": 256, "parts": 16}
    pointwise = "model.triton_pointwise"
    norms: dict[str, Any] = {"width": 2560, "wide": 4096, "tile": 1, "is_gated": False}
    heads: dict[str, Any] = {"width": 128, "wide": 128, "tile": 16, "is_gated": True}
    turns: dict[str, Any] = {"half": 32, "rest": 192, "many": 16, "wide": 32, "wide_rest": 256}
    backwards = [*[given] * 2, FLOAT, FLOAT, *[given] * 3, FLOAT, *sizes, "fp32"]
    return [
        *(
            (f"{pointwise}.norm", [*[given] * 2, FLOAT, given, FLOAT, *sizes, "fp32", "fp32"], each)
            for each in (norms, heads)
        ),
        *(
            (f"{pointwise}.norm_back", backwards, {**each, "learns": True})
            for each in (norms, heads)
        ),
        (f"{pointwise}.gate", [*[given] * 3, INT], {"wide": 2048}),
        (f"{pointwise}.gate_back", [*[given] * 5, INT], {"wide": 2048}),
        *(
            (
                f"{pointwise}.rotate",
                [given, FLOAT, FLOAT, given, *[INT] * 7],
                {**turns, "is_back": is_back},
            )
            for is_back in (False, True)
        ),
        (f"{convolution}.forward", [given, FLOAT, given, *[INT] * 5], tile),
        (
            f"{convolution}.backward",
            [given, FLOAT, given, given, FLOAT, *[INT] * 8],
            {**tile, "span": 64},
        ),
        (
            f"{convolution}.step",
            [given, given, FLOAT, given, *sizes],
            {"width": 4, "kept": 4, "wide": 64},
        ),
        ("model.triton_delta.decode", decoding, layer),
        ("model.triton_attention.join_parts", [*[FLOAT] * 3, given], joining),
        (f"{loss}.scale_softmax", [*[FLOAT] * 3, given, INT, INT], {"width": 4096}),
        (f"{loss}.summarise", [*[FLOAT] * 3, *sizes], {"tile": 32, "width": 64}),
        (f"{loss}.choose_blocks", [FLOAT, SHORT, INT, INT], {"many": 4096}),
        (
            f"{loss}.choose_tokens",
            [FLOAT, SHORT, FLOAT, LONG, *sizes],
            {"slots": 128, "width": 64},
        ),
        (
            f"{loss}.sum_rest",
            [FLOAT, FLOAT, LONG, FLOAT, *sizes, INT],
            {"many": 4096, "slots": 128, "width": 64},
        ),
        (
            f"{head}.to_states",
            [given, LONG, given, given, INT, INT],
            {"tile": 16, "wide": 256},
        ),
        (
            f"{head}.add_to_weights",
            [given, given, *[SHORT] * 3, FLOAT, INT],
            {"tile": 8, "wide": 512},
        ),
        (f"{race}.summarise", [*[FLOAT] * 5, *sizes, "fp32"], {"width": 4096}),
        (f"{race}.run", drawing, {"width": 4096, "many": 64}),
        (f"{race}.finish", finishing, {"many": 64}),
    ]


def delta_kernel(name: str, given: str) -> Kernel:
    """One of the kernels of linear attention in chunks."""
    of_the_inputs = {"query", "key", "value", "strength", "out"}  # with their gradients
    numbers = {"length": INT, "chunks": INT, "scale": "fp32", "epsilon": "fp32"}
    constants = {
        "heads": 32,
        "width": 128,
        "wide": 128,
        "chunk": 64,
        "rows": 32,
        "tile": 64 if name == "read" else 32,
        "starts": True,
        "ends": True,
        "normalises": True,
        "precision": PRECISION,
    }
    kernels: Any = importlib.import_module("bas_opd.model.triton_chunks")
    names = getattr(kernels, name).arg_names
    kinds = [
        numbers.get(each, given if each.removeprefix("of_") in of_the_inputs else FLOAT)
        for each in names
        if each not in constants
    ]
    taken = {each: constants[each] for each in names if each in constants}
    return f"model.triton_chunks.{name}", kinds, taken


def compiled(kernel: Kernel, capability: int, **options: int) -> Any:
    triton: Any = importlib.import_module("triton")
    targets: Any = importlib.import_module("triton.backends.compiler")
    path, kinds, constants = kernel
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(f"bas_opd.{module}"), name)
    others = iter(kinds)
    signature = {
        each: "constexpr" if each in constants else next(others) for each in function.arg_names
    }
    assert next(others, None) is None
    places = {each: (place,) for place, each in enumerate(signature)}
    even = EVEN & {each for each, kind in signature.items() if kind == INT}
    return triton.compile(
        triton.compiler.ASTSource(
            function,
            signature,
            {places[each]: value for each, value in constants.items()},
            {places[n]: [["tt.divisibility", 16]] for n, kind in signature.items() if "*" in kind}
            | {places[n]: [["tt.divisibility", 16]] for n in even},
        ),
        target=targets.GPUTarget("cuda", capability, 32),
        options=options or None,
    )


def spilled(found: Any, folder: Path) -> int:
    """Return the bytes that a thread keeps outside its registers."""
    triton: Any = importlib.import_module("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    path = folder / "kernel.cubin"
    path.write_bytes(found.asm["cubin"])
    said = subprocess.run([tool, "-res-usage", path], check=True, capture_output=True, text=True)
    return int(re.findall(r"STACK:(\d+)", said.stdout)[-1])


@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
@pytest.mark.parametrize("given", [FLOAT, HALF])
def test_plain_kernels_keep_their_values_in_registers(
    given: str, capability: int, tmp_path: Path
) -> None:
    for kernel in plain_kernels(given):
        is_large = kernel[0].rpartition(".")[2] in WITH_8_WARPS or kernel[2].get("width") == 2560
        warps = 8 if is_large else 4
        found = compiled(kernel, capability, num_warps=warps)
        assert spilled(found, tmp_path) == 0, kernel[0]
        assert found.metadata.shared <= 16 * KIB, kernel[0]


@pytest.mark.parametrize("given", [HALF, FLOAT])
@pytest.mark.parametrize("name", WARPS)
def test_a_kernel_with_products_uses_no_wgmma_and_little_shared_memory(
    name: str, given: str, tmp_path: Path
) -> None:
    """Registers as operands of wgmma are what Hopper's compilers have been wrong about."""
    found = compiled(delta_kernel(name, given), HOPPER, num_warps=WARPS[name], num_stages=1)
    assert ("mma.sync" in found.asm["ptx"]) == (name != "sum_back")
    assert "wgmma" not in found.asm["ptx"]
    assert found.metadata.shared <= 48 * KIB
    # Inputs of a real run are in bf16; in fp32 three products take the place of one.
    assert spilled(found, tmp_path) <= (256 if given == HALF else 4 * KIB)


@pytest.mark.parametrize("name", WARPS)
def test_a_kernel_with_products_compiles_for_ampere(name: str) -> None:
    found = compiled(delta_kernel(name, HALF), AMPERE, num_warps=WARPS[name], num_stages=1)
    assert found.metadata.shared <= 48 * KIB


@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
@pytest.mark.parametrize("parts", [1, 16])
def test_attention_of_one_token_fits_two_programs_on_a_multiprocessor(
    parts: int, capability: int, tmp_path: Path
) -> None:
    constants = {"group": 4, "many": 16, "width": 256, "tile": TILE, "all_slots": 2048}
    constants["parts"] = parts
    written = [HALF if parts == 1 else FLOAT] * 3
    kinds = [*[HALF] * 3, "*u8", *written, *[INT] * 9, "fp32"]
    kernel = ("model.triton_attention.attend", kinds, constants)
    found = compiled(kernel, capability, num_warps=4, num_stages=STAGES)
    assert "mma.sync" in found.asm["ptx"]
    assert found.metadata.shared <= 80 * KIB
    assert spilled(found, tmp_path) <= 64
