"""What the command says of failures that are no error of its own."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.commands import doctor


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2.00 GiB.\nDetails"), "out: Tried to allocate"),
        (MemoryError(), "Memory ran out. Use smaller batches"),
    ],
)
def test_full_memory_is_a_sentence_in_every_command(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)
    result = CliRunner().invoke(app, ["doctor"])
    assert (result.exit_code, words in result.output) == (1, True), result.output
    assert "Traceback" not in result.output
    assert "Details" not in result.output


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(doctor, "examine", fail)
    assert isinstance(CliRunner().invoke(app, ["doctor"]).exception, RuntimeError)
