"""Triton that cannot compile is said once, and replaced."""

from __future__ import annotations

import importlib
from importlib import util

import pytest

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
