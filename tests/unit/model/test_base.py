from __future__ import annotations

import json
from pathlib import Path

import pytest

from bas_opd.data.finesearch import VERSIONS, make_finesearch
from bas_opd.errors import ModelError
from bas_opd.evaluate.answering import ModelAnswers
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.questions import View
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.model import base
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.loading import open_model


@pytest.mark.parametrize(("version", "apart"), [("finesearch", 0.15), ("finesearch2", 0.3)])
def test_a_shipped_model_reads_small_things_in_crops_and_misses_many_in_whole_pictures(
    tmp_path: Path, version: str, apart: float
) -> None:
    model = open_model(small_base(version), device="cpu")
    answering = ModelAnswers(model=model, max_response_tokens=80, prompts_per_batch=256)
    made = make_finesearch(
        tmp_path / "set",
        split="val",
        size="small",
        n=42,
        seed=11,
        kinds=LEARNT_KINDS,
        version=version,
    )

    def share(view: View) -> float:
        finesearch = benchmark("finesearch")
        questions = finesearch.load(made.folder, view=view).questions
        scored = score_in_memory(finesearch, questions, answering.answers(questions))
        return sum(one.is_correct for one in scored) / len(scored)

    assert share("crop") > 0.8
    assert share("full") < share("crop") - apart


@pytest.mark.parametrize("version", VERSIONS)
def test_shipped_weights_are_below_15_megabytes_and_have_a_card(version: str) -> None:
    folder = small_base(version)
    assert (folder / "model.safetensors").stat().st_size < 15e6
    assert "FineSearch" in (folder / "README.md").read_text(encoding="utf-8")
    assert set(LEARNT_KINDS) <= set(VERSIONS[version].kinds)


def test_the_card_of_the_second_model_shows_its_records() -> None:
    records = Path(__file__).parents[3] / "docs/results/base2/test.jsonl"
    columns = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    card = (small_base("finesearch2") / "README.md").read_text(encoding="utf-8")
    for kind in LEARNT_KINDS:
        cells = " | ".join(f"{100 * column[kind]:.1f}" for column in columns)
        assert f"| {kind} | {cells} |" in card
    means = [column["mean of learnt kinds"] for column in columns]
    cells = " | ".join(f"**{100 * mean:.1f}**" for mean in means)
    assert f"| **mean of seven kinds** | {cells} |" in card
    assert f"are {100 * (means[1] - means[0]):.0f}\npoints apart" in card


def test_each_version_has_its_own_model() -> None:
    assert small_base() == small_base("finesearch")
    assert len({small_base(version) for version in VERSIONS}) == len(VERSIONS)
    assert set(LEARNT_KINDS) == set(VERSIONS["finesearch2"].kinds)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_package_without_its_weights_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(base, "files", lambda _: tmp_path)
    with pytest.raises(ModelError, match="missing"):
        small_base(version)
