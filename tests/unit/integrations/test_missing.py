from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "needed", "words"),
    [
        ("trl", "trl.trainer.distillation_trainer", r"TRL 1\.16 or newer. .* `pip install trl`"),
        (
            "trl_server",
            "trl.experimental.server_distillation",
            r"TRL 1\.16 or newer. .* `pip install trl`",
        ),
        ("verl", "ray", r"needs verl 0\.9"),
    ],
)
def test_a_trainer_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, needed: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, needed, None)
    monkeypatch.delitem(sys.modules, f"bas_opd.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=words):
        importlib.import_module(f"bas_opd.integrations.{module}")
