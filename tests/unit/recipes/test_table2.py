"""Finishing the longer study of Table 2: what is written into its file and its page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bas_opd.reproduce.policies import best_rates, sweep_table
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.study import read_study
from recipes.table2 import finish

DOCS = Path(__file__).parents[3] / "docs"
FOLDER = DOCS / "results/table2-long"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of the page and its records, with a study that is a draft."""
    shutil.copytree(FOLDER / "sweep", tmp_path / "results/table2-long/sweep")
    shutil.copy(DOCS / "table2-long.md", tmp_path)
    declared = (FOLDER / "study.toml").read_text("utf-8").replace("draft = true\n", "")
    (tmp_path / "results/table2-long/study.toml").write_text(
        declared.replace("\ntask = ", "\ndraft = true\ntask = ")
    )
    return tmp_path


def test_the_best_rates_are_declared_and_nothing_else_changes(docs: Path) -> None:
    study = docs / "results/table2-long/study.toml"
    before = read_study(study).declared
    found = best_rates(read_results(docs / "results/table2-long/sweep"))
    rates = {**found, "opsd": 1e-06, "dapo": 0.003}
    study.write_text(finish.declare(study.read_text("utf-8"), rates))
    after = read_study(study).declared
    assert before.draft
    assert not after.draft
    assert {arm.name: arm.learning_rate for arm in after.arms} == rates
    same = {"draft": False, "arms": after.arms}
    assert before.model_copy(update=same) == after
    for one, other in zip(before.arms, after.arms, strict=True):
        assert one.model_copy(update={"learning_rate": other.learning_rate}) == other


def test_an_arm_that_the_study_has_not_is_refused() -> None:
    with pytest.raises(SystemExit, match="has no arm ppo"):
        finish.declare('name = "grpo"\nlearning_rate = 1e-4\n', {"ppo": 1e-4})


def test_new_trials_reach_the_page_and_the_study_and_old_ones_stay(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of opsd, a trial at 1e-6 is made up that is better than all others."""
    out, commands = tmp_path / "out", list[tuple[str, ...]]()
    sweep = docs / "results/table2-long/sweep"
    kept = {file.name: file.read_bytes() for file in sweep.glob("*.json")}
    made = next(result for result in read_results(sweep) if result.arm == "full")
    better = made.model_copy(update={"arm": "opsd", "learning_rate": 1e-06})
    other = better.model_copy(update={"questions": "others"})
    base = next(result for result in read_results(sweep) if result.arm == "base")
    study = docs / "results/table2-long/study.toml"
    older = "of a file with other rates"

    def make(study: Path, *options: str) -> None:
        commands.append(options)
        assert read_study(study).declared.draft == ("--lr-sweep" in options)
        folder = out / ("sweep" if "--lr-sweep" in options else "results")
        folder.mkdir(parents=True, exist_ok=True)
        if "--lr-sweep" in options:
            (folder / "opsd-25-lr1e-06.json").write_text(better.model_dump_json())
            (folder / "base.json").write_text(
                base.model_copy(update={"device": "another"}).model_dump_json()
            )
        else:
            of_study = {"study": older or read_study(study).hash}
            (folder / "base.json").write_text(base.model_copy(update=of_study).model_dump_json())

    monkeypatch.setattr(finish, "reproduce", make)
    monkeypatch.setattr(finish, "folder_table", lambda folder: "| the table |\n")
    monkeypatch.setattr(finish, "cost_figure", lambda folder: "<svg/>")
    monkeypatch.setattr(finish, "save", lambda figure, path: [path])
    (out / "sweep").mkdir(parents=True)
    foreign = out / "sweep/opsd-25-lr3e-06.json"
    foreign.write_text(other.model_dump_json())
    with pytest.raises(SystemExit, match="differ in data or base model"):
        finish.main(["--out", str(out), "--docs", str(docs)])
    assert {file.name for file in sweep.iterdir()} == set(kept), "A foreign trial is published."
    foreign.unlink()
    with pytest.raises(SystemExit, match=r"1 of the results in .* of another study"):
        finish.main(["--out", str(out), "--docs", str(docs)])
    assert not list(sweep.parent.glob("*.json"))
    older = ""
    finish.main(["--out", str(out), "--docs", str(docs)])

    assert [command[-len(finish.LEFT) :] == finish.LEFT for command in commands] == [
        *(True, True),  # As long as it is a draft,
        *(False, False),  # and then without a sweep.
    ]
    assert {name: (sweep / name).read_bytes() for name in kept} == kept
    declared = {arm.name: arm.learning_rate for arm in read_study(study).declared.arms}
    assert declared["opsd"] == 1e-06
    page = (docs / "table2-long.md").read_text("utf-8")
    assert sweep_table(finish.in_order(study, read_results(sweep))) in page
    assert "<!-- table: policies -->\n| the table |\n<!-- /table -->" in page
    before, after = ((f / "table2-long.md").read_text("utf-8").split("\n## ") for f in (DOCS, docs))
    assert [one.splitlines()[0] for one in before] == [other.splitlines()[0] for other in after]
