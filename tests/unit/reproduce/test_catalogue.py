from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import audit, audit_gradients, evaluate, synthetic_run
from result_fixtures import cost, result
from shapes import make_pictures

from bas_opd.cli.reproduce import app
from bas_opd.config import load_config, preset
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError, DataError
from bas_opd.report.charts.accuracy import accuracy_total
from bas_opd.report.charts.model import Line, Text
from bas_opd.reproduce import catalogue
from bas_opd.reproduce.arms import ARMS, BASELINES
from bas_opd.reproduce.catalogue import ITEMS, cost_figure, listing, make_item, policy_table
from bas_opd.reproduce.material import arms_of_results, source_of
from bas_opd.reproduce.policies import Request
from bas_opd.reproduce.results import write_result
from bas_opd.reproduce.settings import instructions, overrides_of, run_settings, selector_settings
from bas_opd.reproduce.study import read_study


class Quiet:
    """Ignores progress."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None: ...


def request(out: Path, scale: str = "small") -> Request:
    return Request(out=out, scale=scale, device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("catalogue") / "data", n=16, seed=1)


@pytest.fixture
def runs(tmp_path: Path, data: PreparedSet) -> tuple[Path, ...]:
    """A run of full querying and one of learned-25, both evaluated, the second audited."""
    full = synthetic_run(tmp_path / "full", data, policy="full")
    learned = synthetic_run(tmp_path / "learned", data)
    evaluate(full, [True, False] * 5)
    evaluate(learned, [True, True, False, True, False] * 2)
    audit(learned)
    audit(learned, source="held-out")
    audit_gradients(learned)
    return full, learned


def test_every_item_can_be_made_or_says_why_not_and_has_a_command() -> None:
    commands = {command.name for command in app.registered_commands}
    for name, each in ITEMS.items():
        assert (each.make is None) == bool(each.absent)
        assert name in commands
        assert set(each.arms) <= set(ARMS)
        assert re.search(rf"^{name} ", listing(), re.MULTILINE)


def test_what_the_paper_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no 'table9'"):
        make_item("table9", request(tmp_path), Quiet())


def test_a_part_that_cannot_be_made_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other models are not trained here"):
        make_item("table1", request(tmp_path), Quiet())


@pytest.mark.parametrize("name", ["figure0", "figure5"])
def test_figures_of_accuracy_are_made_of_evaluated_runs(
    tmp_path: Path, runs: tuple[Path, ...], name: str
) -> None:
    told = make_item(name, request(tmp_path / "out"), Quiet(), runs=runs)
    assert told.splitlines() == [str(tmp_path / "out" / f"{name}.{end}") for end in ("svg", "pdf")]
    assert (tmp_path / "out" / f"{name}.svg").read_text().startswith("<svg")


def test_a_table_of_policies_is_made_of_evaluated_runs(
    tmp_path: Path, runs: tuple[Path, ...]
) -> None:
    told = make_item("table3", request(tmp_path / "out"), Quiet(), runs=runs)
    lines = told.splitlines()
    assert lines[0].startswith("| policy | query ratio | token ratio |")
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| learned-25", "| full"]
    assert " | 25.00 | " in lines[2]
    assert " | 100.00 | 100.00 | " in lines[3]
    assert (tmp_path / "out" / "table3.md").read_text() == f"{told}\n"


@pytest.mark.parametrize("name", ["table7", "table8"])
def test_cost_tables_have_the_papers_rows_marked_as_quoted(
    tmp_path: Path, runs: tuple[Path, ...], name: str
) -> None:
    told = make_item(name, request(tmp_path / "out"), Quiet(), runs=runs)
    rows = [line.split(" | ")[0] for line in told.splitlines()[2:] if line.startswith("|")]
    assert rows[:2] == ["| full", "| learned-25"]
    assert "Ours: base on data, 6 steps" in told
    assert "V*Bench 86.43, ZoomBench 56.51" in told
    assert len(rows) == {"table7": 10, "table8": 6}[name]
    assert ("| total | total vs. full |" in told) == (name == "table7")
    assert all(row.endswith("(quoted from the paper)") for row in rows[2:6])


def test_audits_become_figures_one_for_each_set_of_batches(
    tmp_path: Path, runs: tuple[Path, ...]
) -> None:
    out = tmp_path / "out"
    make_item("figure3", request(out), Quiet(), runs=runs[1:])
    make_item("figure4", request(out), Quiet(), runs=runs[1:])
    assert sorted(path.name for path in out.iterdir()) == [
        "figure3-held-out.pdf",
        "figure3-held-out.svg",
        "figure3-training.pdf",
        "figure3-training.svg",
        "figure4.pdf",
        "figure4.svg",
    ]


@pytest.mark.parametrize("name", ["figure3", "figure4"])
def test_a_run_that_was_not_audited_is_sent_to_audit(
    tmp_path: Path, runs: tuple[Path, ...], name: str
) -> None:
    with pytest.raises(DataError, match="bas-opd audit"):
        make_item(name, request(tmp_path / "out"), Quiet(), runs=runs[:1])


def test_a_run_that_was_not_evaluated_is_sent_to_eval(tmp_path: Path, data: PreparedSet) -> None:
    run = synthetic_run(tmp_path / "run", data)
    with pytest.raises(DataError, match="bas-opd eval"):
        make_item("figure5", request(tmp_path / "out"), Quiet(), runs=(run,))


def test_runs_on_other_benchmarks_do_not_stand_in_one_figure(
    tmp_path: Path, runs: tuple[Path, ...]
) -> None:
    report = runs[0] / "eval" / "report.json"
    report.write_text(report.read_text().replace('"finesearch"', '"pope"'))
    (runs[0] / "eval" / "finesearch").rename(runs[0] / "eval" / "pope")
    with pytest.raises(DataError, match="evaluated on different benchmarks"):
        make_item("table3", request(tmp_path / "out"), Quiet(), runs=runs)


def test_figures_are_made_of_kept_results_too(tmp_path: Path) -> None:
    for each in (result("full", 0, 5), result("learned25", 0, 6), result("learned10", 0, 4)):
        write_result(tmp_path / f"{each.arm}.json", each)
    make_item("figure2", request(tmp_path / "out"), Quiet(), results=tmp_path)
    assert (tmp_path / "out" / "figure2.svg").exists()
    with pytest.raises(DataError, match="accuracy and cost alone"):
        make_item("figure3", request(tmp_path / "out"), Quiet(), results=tmp_path)
    (tmp_path / "learned25.json").unlink()
    with pytest.raises(DataError, match="None of learned25"):
        make_item("table4", request(tmp_path / "out"), Quiet(), results=tmp_path)


def test_at_the_papers_scale_the_commands_name_what_each_policy_changes(tmp_path: Path) -> None:
    told = make_item("table3", request(tmp_path, "paper"), Quiet())
    assert "select.policy=full select.query_ratio=1" in told
    assert "run.output=runs/random25 select.policy=random" in told
    assert "run.output=runs/learned25\n" in told
    assert not list(tmp_path.iterdir())


def test_each_item_at_the_papers_scale_says_what_it_needs() -> None:
    told = {name: instructions(name, ITEMS[name].arms) for name in ("figure4", "table4", "table7")}
    assert "bas-opd audit runs/learned25 --only geometry" in told["figure4"]
    assert "run.keep_every=18" in told["figure4"]
    assert "bas-opd eval" not in told["table7"]
    assert "distill.use_overlap=false" in told["table4"]


def test_overrides_make_the_papers_run_follow_a_preset() -> None:
    policies = ("full", "entropy25", "learned50", "learned25-without-exploration")
    for policy in (*policies, *(arm.name for arm in BASELINES)):
        typed = load_config(preset("qwen3.5-4b"), ["data.path=x", *overrides_of(policy)])
        laid = load_config(preset(policy), ["data.path=x"], over=preset("qwen3.5-4b"))
        assert typed.model_copy(update={"run": laid.run}) == laid


def test_table_2_at_the_papers_scale_names_every_baseline(tmp_path: Path) -> None:
    told = make_item("table2", request(tmp_path, "paper"), Quiet())
    for arm in BASELINES:
        assert f"run.output=runs/{arm.name} method.name={arm.preset.split('-')[0]}" in told
    assert "grpo.dual_clip=3.0" in told
    assert "optim.learning_rate=1e-06" in told
    assert "run.output=runs/learned25\n" in told


@pytest.mark.parametrize("change", [{"seeds": 2}, {"test_n": 40}, {"overrides": ("run.steps=3",)}])
def test_table_2_is_a_study_that_no_option_changes(tmp_path: Path, change: dict[str, Any]) -> None:
    asked = replace(request(tmp_path), **change)
    with pytest.raises(ConfigError, match=r"table2 is a study.*bas-opd reproduce study COPY"):
        make_item("table2", asked, Quiet())


def test_table_2_is_made_by_the_study_that_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def made(given: Request, progress: Any) -> str:
        asked.append(given)
        return "the table"

    monkeypatch.setattr(catalogue, "reproduce", made)
    wanted = Request(out=tmp_path, jobs=3, device="cuda:1", data=tmp_path / "data")
    assert make_item("table2", wanted, Quiet()) == "the table"
    (given,) = asked
    assert given.study == read_study(catalogue.STUDIES / "table2.toml")
    assert (given.out, given.jobs, given.device, given.data, given.arms, given.rates) == (
        *(tmp_path, 3, "cuda:1", tmp_path / "data", None, None),
    )


def test_an_arm_without_queries_has_a_budget_of_nothing() -> None:
    results = [
        result("full", 0, 5, cost=cost(scored_tokens=4000)),
        result("opsd", 0, 5, cost=cost(scored_tokens=4400)),
        result("grpo", 0, 6, cost=cost(scored_tokens=0)),
    ]
    full, grpo, opsd = sorted(arms_of_results(results), key=lambda arm: arm.name)
    assert (full.policy, grpo.policy, opsd.policy) == ("full", "grpo", "opsd")
    assert (grpo.budget, grpo.token_share) == (0.0, 0.0)
    assert (opsd.budget, opsd.token_share) == (1.0, pytest.approx(1.1))


def test_settings_are_those_in_force() -> None:
    assert "| select.replay_start | 96 |" in selector_settings()
    assert "| select.query_ratio | 1 | 0.25 |" in run_settings(("full", "learned25"))


def test_arms_of_results_have_their_budgets_and_shares_of_full_querying() -> None:
    results = [
        result("base", None, 3),
        result("full", 0, 5, cost=cost(scored_tokens=4000)),
        result("learned25", 0, 6, cost=cost(scored_tokens=900)),
        result("learned25", 1, 8, cost=cost(scored_tokens=1100)),
    ]
    base, full, learned = arms_of_results(results)
    assert (base.budget, base.token_share) == (None, None)
    assert (full.budget, full.token_share) == (1.0, 1.0)
    assert (learned.budget, learned.token_share) == (0.25, 0.25)
    assert learned.parts["colour"].value == pytest.approx(0.7)
    assert learned.parts["colour"].low < 0.6
    assert "2 seeds" in source_of(results)
    assert "| learned25 | 25.00 | 25.00 | 100.00 | 70.0 ± " in policy_table([learned])


def test_arms_with_fewer_rollouts_are_in_the_table_of_policies_with_their_total_tokens() -> None:
    results = [
        result("full", 0, 5, cost=cost(scored_tokens=4000, total_tokens=80_000)),
        result("fewer2", 0, 6, cost=cost(scored_tokens=1000, total_tokens=30_000)),
    ]
    table = policy_table(arms_of_results(results))
    assert "| policy | query ratio | token ratio | total ratio |" in table
    assert "| fewer2 | 100.00 | 25.00 | 37.50 |" in table


def test_the_figure_of_a_folder_shows_every_arm_over_its_total_tokens(tmp_path: Path) -> None:
    results = [
        result("base", None, 3),
        *(
            result(arm, seed, right + seed, cost=cost(total_tokens=tokens))
            for arm, right, tokens in (
                ("full", 7, 80_000),
                ("fewer2", 5, 20_000),
                ("random25", 4, 40_000),
            )
            for seed in (0, 1)
        ),
    ]
    for each in results:
        write_result(tmp_path / f"{each.arm}-{each.seed}.json", each)
    svg = cost_figure(tmp_path)
    for name in ("full", "fewer2", "random25"):
        assert f">{name}</text>" in svg
    assert "Without training: base 35.0 %." in svg
    chart = accuracy_total(arms_of_results(results))
    assert "fewer2: 47.5 % at 25.0 % of the tokens" in chart.label
    (panel,) = chart.panels
    line = next(shape for shape in panel.shapes if isinstance(shape, Line) and not shape.form)
    assert [round(share, 2) for share, _ in line.points] == [0.25, 1.0]
    labels = [shape for shape in panel.shapes if isinstance(shape, Text)]
    assert all(panel.x.low < label.at[0] < panel.x.high for label in labels)


def test_a_figure_of_arms_without_total_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="No total tokens are known"):
        accuracy_total(arms_of_results([result("base", None, 3)]))
