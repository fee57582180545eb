"""A study: what its file may say, what it runs, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from result_fixtures import answered
from shapes import make_pictures

from bas_opd.config import dump
from bas_opd.config.loading import flat
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, ConfigError, DataError, RunDirectoryError
from bas_opd.files import sha256
from bas_opd.reproduce import policies
from bas_opd.reproduce.arms import arm_config
from bas_opd.reproduce.policies import Request, reproduce
from bas_opd.reproduce.questions import QUESTIONS
from bas_opd.reproduce.results import Run, read_results, write_result
from bas_opd.reproduce.study import Study, parse_seeds, read_study
from bas_opd.reproduce.table import folder_table

FILE = """
# Declared before the first run.
title = "A small study"
base = "base"
steps = 3
train = 6
test = 40
val = 8
settings = ["optim.warmup_steps=0", "rollout.prompts_per_step=2"]

[[arm]]
name = "full"
learning_rate = 1e-4
seeds = "0-3"

[[arm]]
name = "fewer2"
learning_rate = 3e-4
seeds = [0, 1, 2, 3]

[[arm]]
name = "random12-matched"
preset = "random25"
settings = ["select.query_ratio=0.2"]
learning_rate = 3e-5
seeds = "1,3"

[[comparison]]
arm = "fewer2"
against = "full"
claim = "non-inferiority"
margin = 0.5

[[comparison]]
arm = "random12-matched"
against = "fewer2"
claim = "superiority"
"""


class Silent:
    """Ignores progress."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/model.safetensors").write_bytes(b"weights")
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    return path


def right(run: Run, place: int) -> bool:
    """The base has a quarter right; full and fewer2 half, random12-matched three quarters."""
    shift = run.planned.seed or 0
    return (place + shift) % 4 < {"base": 1, "full": 2, "fewer2": 2}.get(run.planned.arm, 3)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were made; pictures stand in for FineSearch, and answers for training."""
    runs: list[Run] = []

    def draw(place: Path, *, split: str, n: int, **_: Any) -> Any:
        return make_pictures(place, n=n, seed=["train", "val", "test"].index(split))

    def pool(tasks: Sequence[Run], **_: Any) -> Any:
        for run in tasks:
            runs.append(run)
            kinds = [each.kind for each in PreparedSet.load(run.questions).examples]
            write_result(run.result, answered(run, kinds, lambda place, run=run: right(run, place)))
            yield run, "done", "fine"

    monkeypatch.setattr("bas_opd.data.finesearch.make_finesearch", draw)
    monkeypatch.setattr(policies, "run_side_by_side", pool)
    return runs


def ask(file: Path, out: Path, **options: Any) -> str:
    return reproduce(Request.of_study(read_study(file), out=out, jobs=1, **options), Silent())


def test_seeds_are_ranges_and_lists() -> None:
    assert parse_seeds("0-3") == (0, 1, 2, 3)
    assert parse_seeds("5, 1-2,1") == (1, 2, 5)
    for text in ("", "3-1", "a", "1-", "-1"):
        with pytest.raises(ConfigError, match="names no seeds"):
            parse_seeds(text)


def test_each_arm_runs_with_its_own_rate_and_seeds_and_those_of_the_file(
    file: Path, begun: list[Run], tmp_path: Path
) -> None:
    ask(file, tmp_path / "out")
    assert [run.name for run in begun] == [
        *("base", "full-0", "fewer2-0", "full-1", "fewer2-1", "random12-matched-1"),
        *("full-2", "fewer2-2", "full-3", "fewer2-3", "random12-matched-3"),
    ]
    for run in begun[1:]:
        config, plan = run.config, run.planned
        assert plan.seed is not None
        assert (config.run.seed, config.select.seed) == (42 + plan.seed, plan.seed)
        assert (config.run.steps, config.optim.warmup_steps) == (3, 0)
        rates = {"full": 1e-4, "fewer2": 3e-4, "random12-matched": 3e-5}
        assert config.optim.learning_rate == plan.learning_rate == rates[plan.arm]
        assert config.model.path == str(file.parent / "base")
        assert config.rollout.per_prompt == (2 if plan.arm == "fewer2" else 8)
        ratio = "0.2" if plan.arm == "random12-matched" else "1"
        assert str(config.select.query_ratio) == ratio
    results = read_results(tmp_path / "out/results")
    assert {result.study for result in results} == {sha256(file)}
    assert (tmp_path / "out/results/study.toml").read_text() == FILE
    assert (tmp_path / "out/results" / QUESTIONS).read_text().startswith("id,kind,cluster\n")


def test_a_part_can_be_run_and_the_rest_later(file: Path, begun: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = ask(file, out, arms=("base", "full", "fewer2"), seeds=(0, 1))
    assert [run.name for run in begun] == ["base", "full-0", "fewer2-0", "full-1", "fewer2-1"]
    assert "5 of 11 results" in first
    assert (
        "fewer2 against full, non-inferiority: not evaluated**; 4 runs of it are missing" in first
    )
    begun.clear()
    whole = ask(file, out)
    assert len(begun) == 6
    assert "11 of 11 results" in whole
    assert folder_table(out) == folder_table(out / "results") == whole
    begun.clear()
    assert ask(file, out) == whole
    assert begun == []
    with pytest.raises(ConfigError, match="no arm named learned25"):
        ask(file, out, arms=("learned25",))
    with pytest.raises(ConfigError, match="has one of these seeds"):
        ask(file, out, arms=("full",), seeds=(9,))


@pytest.mark.usefixtures("begun")
def test_the_primary_comparisons_are_evaluated_as_declared(file: Path, tmp_path: Path) -> None:
    table = ask(file, tmp_path / "out")
    lines = {line.split(":")[0]: line for line in table.splitlines() if "against" in line}
    met = lines["- **fewer2 against full, non-inferiority"]
    # Both have half right at every seed, the base a quarter: no difference, a margin of 12.5.
    assert ": met**; +0.00 points (95 % CI over seeds and questions +0.00 to +0.00, 4 seeds)" in met
    assert "50 % of the" in met
    better = lines["- **random12-matched against fewer2, superiority"]
    assert ": met**; +" in better
    assert "2 seeds" in better
    swapped = FILE.replace('arm = "fewer2"\nagainst = "full"', 'arm = "full"\nagainst = "fewer2"')
    swapped = swapped.replace(
        'arm = "random12-matched"\nagainst = "fewer2"',
        'arm = "fewer2"\nagainst = "random12-matched"',
    )
    file.write_text(swapped)
    table = ask(file, tmp_path / "other")
    assert "**full against fewer2, non-inferiority: met**" in table
    assert "**fewer2 against random12-matched, superiority: not met**" in table


@pytest.mark.usefixtures("begun")
def test_a_gain_that_may_be_none_is_nothing_to_be_non_inferior_to(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two arms answer alike, but only one of four seeds gains anything over the base."""
    monkeypatch.setitem(
        globals(), "right", lambda run, place: run.planned.seed == 0 or place % 4 == 0
    )
    table = ask(file, tmp_path / "out")
    assert "fewer2 against full, non-inferiority: not met**; +0.00 points" in table


@pytest.mark.usefixtures("begun")
def test_the_gain_is_that_of_the_seeds_that_are_compared(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "right", lambda run, _: run.planned.seed in (1, 3))
    file.write_text(FILE.replace('"superiority"', '"non-inferiority"\nmargin = 0.5'))
    table = ask(file, tmp_path / "out")
    assert (
        "random12-matched against fewer2, non-inferiority: met**; +0.00 points (95 % CI over seeds "
        "and questions +0.00 to +0.00, 2 seeds), margin 50.00: 50 % of the 100.00 points that "
        "fewer2 gains over the base"
    ) in table


@pytest.mark.usefixtures("begun")
def test_a_study_that_was_changed_is_another_study(file: Path, tmp_path: Path) -> None:
    ask(file, tmp_path / "out")
    file.write_text(FILE.replace("margin = 0.5", "margin = 0.6"))
    with pytest.raises(RunDirectoryError, match="A study stays as it was declared"):
        ask(file, tmp_path / "out")
    (tmp_path / "out/results/study.toml").unlink()
    with pytest.raises(RunDirectoryError, match="is a result of another study, or of none"):
        ask(file, tmp_path / "out")
    (tmp_path / "out/results/study.toml").write_text(file.read_text())
    with pytest.raises(DataError, match="of another study than"):
        folder_table(tmp_path / "out")
    (tmp_path / "out/results/study.toml").unlink()
    with pytest.raises(DataError, match="of another study than"):
        folder_table(tmp_path / "out")


@pytest.mark.usefixtures("begun")
def test_results_that_the_study_does_not_declare_are_refused(file: Path, tmp_path: Path) -> None:
    ask(file, tmp_path / "out")
    folder = tmp_path / "out/results"
    extra = read_results(folder)[1].model_copy(update={"seed": 7})
    write_result(folder / "extra.json", extra)
    with pytest.raises(DataError, match="does not declare fewer2 with seed 7"):
        folder_table(folder)


@pytest.mark.usefixtures("begun")
def test_outcomes_of_other_questions_are_refused(file: Path, tmp_path: Path) -> None:
    ask(file, tmp_path / "out")
    path = tmp_path / "out/results" / QUESTIONS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:], lines[1]]))
    with pytest.raises(DataError, match=r"questions\.csv is not of the questions"):
        folder_table(tmp_path / "out")
    with pytest.raises(RunDirectoryError, match="of other questions"):
        ask(file, tmp_path / "out")
    path.unlink()
    with pytest.raises(DataError, match="cannot be evaluated"):
        folder_table(tmp_path / "out")


def test_a_sweep_gives_every_arm_of_a_study_the_same_trials_on_val(
    file: Path, begun: list[Run], tmp_path: Path
) -> None:
    table = ask(file, tmp_path / "out", rates="3e-5,1e-4", seeds=(20, 21))
    trials: dict[str, list[tuple[int | None, float]]] = {}
    for run in begun[1:]:
        plan = run.planned
        trials.setdefault(plan.arm, []).append((plan.seed, run.config.optim.learning_rate))
        assert (plan.split, plan.study) == ("val", None)
        assert run.result.parent == tmp_path / "out/sweep"
    assert list(trials) == ["full", "fewer2", "random12-matched"]
    expected = [(seed, rate) for rate in (3e-5, 1e-4) for seed in (20, 21)]
    assert all(each == expected for each in trials.values())
    assert "| learning rate | full | fewer2 | random12-matched |" in table
    # Rates that are equally good: the lowest.
    assert "| chosen | 3e-05 | 3e-05 | 3e-05 |" in table
    assert "8 val questions, 2 seeds." in table
    assert sorted(path.name for path in (tmp_path / "out/data").iterdir()) == ["train", "val"]


def change(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (change("steps = 3", "step = 3"), "no study: "),
        (change("margin = 0.5", ""), "non-inferiority needs a margin"),
        (change("margin = 0.5", "margin = 1.5"), "margin"),
        (change('claim = "superiority"', 'claim = "superiority"\nmargin = 0.1'), "needs a margin"),
        (change('against = "full"', 'against = "random25"'), "random25, which is no arm here"),
        (change('name = "fewer2"', 'name = "full"'), "two arms are named full"),
        (change('name = "fewer2"', 'name = "fewer3"'), "fewer3 is no known arm"),
        (change('name = "fewer2"', 'name = "base"'), "is not declared"),
        (change('seeds = "1,3"', 'seeds = "8-9"'), "two seeds in common"),
        (change('seeds = "1,3"', 'seeds = "x"'), "names no seeds"),
        (change("learning_rate = 1e-4", "learning_rate = -1.0"), "learning_rate"),
        (change('preset = "random25"', 'preset = "random26"'), "random12-matched cannot be run"),
        (change("query_ratio=0.2", "query_ratio=2"), "random12-matched cannot be run"),
        (change("title =", "title"), "not valid TOML"),
    ],
)
def test_what_is_no_study_is_refused(
    file: Path, edit: Callable[[str], str], complaint: str
) -> None:
    file.write_text(edit(FILE))
    assert file.read_text() != FILE
    with pytest.raises(ConfigError, match=complaint):
        read_study(file)


def test_the_study_in_the_documentation_is_one(file: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/commands.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(title.*?)^```", page, re.DOTALL | re.MULTILINE)
    file.write_text(example)
    study = read_study(file)
    assert [arm.name for arm in study.arms] == ["base", "full", "fewer2", "random30"]
    assert len(study.declared.comparisons) == 2


def test_the_base_of_a_study_is_beside_its_file_or_the_small_one(file: Path) -> None:
    study: Study = read_study(file)
    assert study.base == file.parent / "base"
    file.write_text(FILE.replace('base = "base"', ""))
    assert read_study(file).base.name == "small_base"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_study(file.parent / "none.toml")


def test_a_study_may_name_baselines_and_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "table2.toml"
    path.write_text(
        'title = "Methods"\ntask = "finesearch2"\nsteps = 3\ntrain = 6\ntest = 40\n'
        '[[arm]]\nname = "dapo"\nlearning_rate = 3e-5\nseeds = "0-1"\n'
        '[[arm]]\nname = "grpo-gentle"\npreset = "grpo"\nsettings = ["grpo.beta=0.1"]\n'
        'learning_rate = 1e-5\nseeds = "0-1"\n'
    )
    _, dapo, gentle = read_study(path).arms
    config = arm_config(dapo, 0, ["model.path=x", "data.path=x"], task="finesearch2")
    assert (config.method.name, config.optim.learning_rate) == ("dapo", 3e-5)
    config = arm_config(gentle, 0, ["model.path=x", "data.path=x"], task="finesearch2")
    assert (config.grpo.beta, config.optim.learning_rate) == (0.1, 1e-5)
    path.write_text(path.read_text().replace("grpo.beta=0.1", "select.query_ratio=0.1"))
    with pytest.raises(ConfigError, match="the method grpo does not use it"):
        read_study(path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("query_ratio=0.2", "query_ratio=0.01", "random12-matched cannot be run. .*no query"),
        ("train = 6", "train = 1", "full cannot be run. The set has 1 rows"),
        ('preset = "random25"', 'preset = "learned25"', "random12-matched .* will rank no row"),
        ('base = "base"', 'base = "nowhere"', "no weights"),
    ],
)
def test_every_arm_is_checked_before_anything_is_made(
    file: Path, begun: list[Run], tmp_path: Path, old: str, new: str, says: str
) -> None:
    file.write_text(FILE.replace(old, new))
    with pytest.raises(BasOpdError, match=says):
        ask(file, tmp_path / "out", confirm=lambda forecast: pytest.fail("it was asked about"))
    assert not begun
    assert not (tmp_path / "out").exists()


def test_arms_are_checked_on_the_pictures_that_were_drawn(
    file: Path, begun: list[Run], tmp_path: Path
) -> None:
    """K is 1 if all six prompts of a step have crops, and 0 if five have."""
    text = FILE.replace("prompts_per_step=2", "prompts_per_step=6")
    file.write_text(text.replace("query_ratio=0.2", "query_ratio=0.021"))
    with pytest.raises(ConfigError, match="random12-matched cannot be run"):
        ask(file, tmp_path / "out")
    assert not begun
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data"]


def test_a_study_that_failed_before_a_result_can_be_changed(
    file: Path, begun: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tasks: Sequence[Run], **_: Any) -> Any:
        yield from ((run, "failed", "No luck.") for run in tasks)

    with monkeypatch.context() as patch:
        patch.setattr(policies, "run_side_by_side", broken)
        with pytest.raises(BasOpdError, match="11 of 11 runs failed"):
            ask(file, tmp_path / "out")
    file.write_text(FILE.replace("margin = 0.5", "margin = 0.6"))
    assert "11 of 11 results" in ask(file, tmp_path / "out")
    assert (tmp_path / "out/results/study.toml").read_text() == file.read_text()


@pytest.mark.parametrize("name", ["ahead", "ahead-long"])
def test_the_declared_arms_one_step_ahead_differ_in_the_lag_alone(name: str) -> None:
    study = read_study(Path(__file__).parents[3] / "docs" / "results" / name / "study.toml")
    settings = ["model.path=x", "data.path=x", *study.overrides]
    configs = {
        arm.name: flat(dump(arm_config(arm, 300, settings, task=study.declared.task)))
        for arm in study.arms
        if arm.preset
    }
    assert {seeds for arm, seeds in study.arms.items() if arm.preset} == {tuple(range(300, 308))}
    for each in study.declared.comparisons:
        one, other = configs[each.arm], configs[each.against]
        one, other = sorted((one, other), key=lambda arm: arm["rollout.ahead"], reverse=True)
        apart = {key: one[key] for key in one if one[key] != other[key]}
        assert apart.pop("rollout.ahead") == 1
        assert apart == ({"rollout.correct": True} if each.arm.endswith("corrected") else {})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('seeds = "1,3"', 'seed = "1,3"', "arm 3, seed is not known. Did you mean 'seeds'?"),
        ("steps = 3", "step = 3", "step is not known. Did you mean 'steps'?"),
        ("margin = 0.5", "margins = 0.5", "comparison 1, margins is not known. Did you mean"),
        ("learning_rate = 3e-5", 'learning_rate = "x"', "arm 3, learning_rate must be a number."),
        ('preset = "random25"', "", "random12-matched is no known arm (did you mean random12?)"),
        ("query_ratio=0.2", "query_ratoi=0.2", "study.toml, select.query_ratoi is not a setting."),
        ("query_ratio=0.2", "query_ratio=7", "study.toml, select.query_ratio is 7, but"),
        ("optim.warmup_steps=0", "optim.warmup_steps", "study.toml, 'optim.warmup_steps' sets"),
    ],
)
def test_a_mistake_in_the_file_is_named_where_it_is(
    file: Path, old: str, new: str, says: str
) -> None:
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        read_study(file)
    assert "command line" not in str(caught.value)
