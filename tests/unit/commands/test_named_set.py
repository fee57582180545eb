"""Training sets by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.commands.named_set import load_data, with_named_set
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
    assert len(load_data(config)) == 40
    assert not list(tmp_path.iterdir())
    drawn = PreparedSet.load(Path(with_named_set(config, Quiet()).data.path))
    assert {example.kind for example in drawn.examples} == set(LEARNT_KINDS) - missing
    assert all(example.has_crop for example in drawn.examples)
    assert load_data(config) == drawn


def test_a_drawn_set_that_is_damaged_says_how_it_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["model.path=small", "rollout.prompts_per_step=2", "run.steps=1"]
    config = load_config(preset("tiny"), settings)
    records = Path(with_named_set(config, Quiet()).data.path) / "records.jsonl"
    records.write_bytes(records.read_bytes()[:-9])
    for act in (load_data, lambda config: with_named_set(config, Quiet())):
        with pytest.raises(DataError, match=r"Remove data/finesearch-2, and it is drawn again\."):
            act(config)
