"""Training sets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.commands.named_set import with_named_set
from bas_opd.config import load_config, preset
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.model.base import LEARNT_KINDS


class Quiet:
    """Ignores progress."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None: ...


@pytest.mark.parametrize(
    ("name", "missing"), [("finesearch", {"existence"}), ("finesearch2", set())]
)
def test_a_named_set_has_every_kind_whose_answers_all_have_crops(
    name: str, missing: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [f"data.path={name}", "model.path=small", "rollout.prompts_per_step=10"]
    config = load_config(preset("tiny"), [*settings, "run.steps=4"])
    with pytest.raises(
        DataError, match=r"bas-opd data make finesearch data/finesearch2?-40 --split"
    ):
        with_named_set(config)
    drawn = PreparedSet.load(Path(with_named_set(config, Quiet()).data.path))
    assert {example.kind for example in drawn.examples} == set(LEARNT_KINDS) - missing
