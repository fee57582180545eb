"""Triton that cannot compile is said once, and replaced; new kernels are chosen by their names."""

from __future__ import annotations

import importlib
from importlib import util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bas_opd.compute import compiling


@pytest.fixture(autouse=True)
def _forget() -> None:
    compiling.has_triton.cache_clear()


def test_without_triton_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert not compiling.has_triton()
    assert not caplog.records


def test_triton_that_cannot_compile_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr(util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib, "import_module", fail)
    assert not compiling.has_triton()
    assert not compiling.has_triton()
    (record,) = caplog.records
    assert "Failed to find C compiler" in record.getMessage()
    compiling.has_triton.cache_clear()


def test_triton_launches_where_a_tensor_is() -> None:
    elsewhere: Any = compiling.launching_on(SimpleNamespace(device=torch.device("cuda:1")))  # type: ignore[arg-type]
    assert elsewhere.idx == 1
    with compiling.launching_on(torch.zeros(1)):  # Nothing is started on a CPU.
        pass


def test_a_device_has_kernels_if_it_is_fast_and_triton_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for works in (True, False):
        monkeypatch.setattr(compiling, "has_triton", lambda works=works: works)
        monkeypatch.setattr(compiling, "_chosen", "auto")
        assert compiling.has_kernels(gpu) == works
        assert not compiling.has_kernels(cpu)
        monkeypatch.setattr(compiling, "_chosen", "reference")
        assert not compiling.has_kernels(gpu)
