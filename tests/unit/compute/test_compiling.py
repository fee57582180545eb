"""Triton that cannot compile is said once, and replaced; new kernels are chosen by their names."""

from __future__ import annotations

import importlib
from importlib import util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bas_opd.compute import compiling
from bas_opd.errors import ConfigError


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


@pytest.mark.parametrize(
    ("named", "chosen"),
    [("", []), ("all", ["delta", "filter", "loss", "race"]), (" race,delta ", ["delta", "race"])],
)
def test_the_environment_names_new_kernels(
    monkeypatch: pytest.MonkeyPatch, named: str, chosen: list[str]
) -> None:
    monkeypatch.delenv(compiling.NEW_KERNELS, raising=False)
    assert compiling.new_kernels() == []
    monkeypatch.setenv(compiling.NEW_KERNELS, named)
    assert compiling.new_kernels() == chosen


def test_a_kernel_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.NEW_KERNELS, "race,1")
    with pytest.raises(ConfigError, match=r"do not exist: 1\. Set it to all or to some"):
        compiling.tries_new("race")
