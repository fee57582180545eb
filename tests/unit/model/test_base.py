from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bas_opd.data.finesearch import KINDS, make_finesearch
from bas_opd.errors import ModelError
from bas_opd.evaluate.runner import evaluate
from bas_opd.model import base
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.loading import load_model
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel


def test_the_shipped_model_reads_small_things_in_crops_and_misses_many_in_whole_pictures(
    tmp_path: Path,
) -> None:
    folder = small_base()
    model = VisionLanguageModel(
        load_model(str(folder), device=torch.device("cpu")), Processor.load(folder)
    )
    made = make_finesearch(
        tmp_path / "set", split="val", size="small", n=42, seed=11, kinds=LEARNT_KINDS
    )
    shares = {}
    for view in ("full", "crop"):
        graded = evaluate(model, made.examples, view=view)
        shares[view] = sum(one.is_correct for one in graded) / len(graded)
    assert shares["crop"] > 0.8
    assert shares["full"] < shares["crop"] - 0.15


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
