from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.data.finesearch import KINDS, make_finesearch
from bas_opd.errors import ModelError
from bas_opd.evaluate.answering import ModelAnswers
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.questions import View
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.model import base
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.loading import open_model


def test_the_shipped_model_reads_small_things_in_crops_and_misses_many_in_whole_pictures(
    tmp_path: Path,
) -> None:
    model = open_model(small_base(), device="cpu")
    answering = ModelAnswers(model=model, max_response_tokens=24, prompts_per_batch=256)
    made = make_finesearch(
        tmp_path / "set", split="val", size="small", n=42, seed=11, kinds=LEARNT_KINDS
    )

    def share(view: View) -> float:
        finesearch = benchmark("finesearch")
        questions = finesearch.load(made.folder, view=view).questions
        scored = score_in_memory(finesearch, questions, answering.answers(questions))
        return sum(one.is_correct for one in scored) / len(scored)

    assert share("crop") > 0.8
    assert share("full") < share("crop") - 0.15


def test_the_shipped_weights_are_below_15_megabytes_and_have_a_card() -> None:
    folder = small_base()
    assert (folder / "model.safetensors").stat().st_size < 15e6
    assert "FineSearch" in (folder / "README.md").read_text(encoding="utf-8")
    assert len(LEARNT_KINDS) >= 5
    assert set(LEARNT_KINDS) <= set(KINDS)


def test_a_package_without_its_weights_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "files", lambda _: tmp_path)
    with pytest.raises(ModelError, match="missing"):
        small_base()
