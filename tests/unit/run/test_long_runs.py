"""Runs of many steps: what was counted is not read again, and steps are read one at a time."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from report_fixtures import synthetic_run
from shapes import make_pictures

from bas_opd.commands.watch import watch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.charts.model import DRAWN, Bar, line_chart
from bas_opd.report.charts.model import Line as Drawn
from bas_opd.report.charts.training import budget_chart
from bas_opd.report.run import read_run
from bas_opd.run import record_file
from bas_opd.run.console import Console
from bas_opd.run.history import collect_outline, read_history, read_outline
from bas_opd.run.ledger import Ledger
from bas_opd.run.record_file import RecordWriter, claims_place, holds_place, read_lines
from bas_opd.run.verify import verify
from bas_opd.run.view import WIDTH

STEPS = 4 * WIDTH


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "set", n=24, seed=3)


@pytest.fixture
def run(pictures: PreparedSet, tmp_path: Path) -> Path:
    """An unfinished run with a checkpoint of all its steps but the last two."""
    path = synthetic_run(tmp_path / "run", pictures, steps=STEPS, planned=STEPS + 9)
    steps = read_history(path).steps[:-2]
    *_, last = list(read_lines(path / "records.jsonl"))[:-2]
    state = {
        "ledger": Ledger.of(steps).totals(),
        "records_bytes": last.end,
        "records_chain": last.chain,
    }
    folder = path / "checkpoints" / f"step-{len(steps):08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(state))
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the lines that were parsed."""
    count, parse = 0, record_file._parse

    def counting(line: bytes, where: str) -> dict[str, object]:
        nonlocal count
        count += 1
        return parse(line, where)

    monkeypatch.setattr(record_file, "_parse", counting)
    return lambda: count


def test_only_the_last_steps_are_parsed_to_show_a_run(
    run: Path, parsed: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    watch(run, every=None)
    assert parsed() <= WIDTH + 3
    calls = Ledger.of(read_history(run).steps).calls
    assert f"step {STEPS}/{STEPS + 9}" in (shown := capsys.readouterr().out)
    assert f"teacher calls {calls:,}" in shown


def test_a_resumed_run_shows_all_steps_though_it_parses_the_last(
    run: Path, parsed: Callable[[], int]
) -> None:
    console = Console(io.StringIO(), run=run)
    console.start(STEPS + 9, done=STEPS)
    assert parsed() <= WIDTH + 3
    assert console.view.ledger == Ledger.of(read_history(run).steps)
    assert [step.step for step in console.view.recent] == list(range(STEPS - WIDTH, STEPS))


def test_a_checkpoint_of_other_records_is_not_counted(run: Path) -> None:
    (state,) = run.glob("checkpoints/*/state.json")
    state.write_text(state.read_text().replace('"records_chain": "', '"records_chain": "0'))
    console = Console(io.StringIO(), run=run)
    console.start(STEPS + 9, done=STEPS)
    assert console.view.ledger == Ledger.of(read_history(run).steps)


def test_an_outline_parses_no_step(run: Path, parsed: Callable[[], int]) -> None:
    outline = read_outline(run)
    assert (outline.step_count, parsed()) == (STEPS, 1)
    assert list(outline.read_steps(pytest.fail)) == read_history(run).steps


def test_the_place_of_a_checkpoint_is_found_without_parsing(
    run: Path, parsed: Callable[[], int]
) -> None:
    (state,) = run.glob("checkpoints/*/state.json")
    place, log = json.loads(state.read_text()), run / "records.jsonl"
    assert holds_place(log, place)
    with RecordWriter(log):
        assert parsed() == 1  # the last line, which the next one follows from
    assert not holds_place(log, {**place, "records_bytes": place["records_bytes"] - 1})
    content = log.read_bytes()
    log.write_bytes(content.replace(b'"calls":', b'"calms":', 1))
    assert not holds_place(log, place)
    log.write_bytes(content[:100])
    assert not claims_place(log, place)


def test_a_changed_line_is_named_though_no_step_is_parsed(run: Path) -> None:
    log = run / "records.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"calls":', b'"calms":', 1))
    with pytest.raises(DataError, match=r"records\.jsonl:2 does not follow"):
        read_outline(run)
    assert "No record before the first step was read." in collect_outline(run).problems[0]


def test_verify_holds_one_step_at_a_time(pictures: PreparedSet, tmp_path: Path) -> None:
    peaks = []
    for steps in (50, 500):
        run = synthetic_run(tmp_path / f"{steps}", pictures, steps=steps)
        tracemalloc.start()
        assert verify(run).checks[0].is_sound
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_page_keeps_little_of_each_step(pictures: PreparedSet, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", pictures, steps=400)
    records = (run / "records.jsonl").stat().st_size
    read_run(run)  # Imports, and what is cached.
    tracemalloc.start()
    kept = read_run(run)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kept.steps) == 400
    assert held < 3 * records


def test_a_chart_draws_no_more_than_can_be_seen_and_hides_no_overrun(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=2 * DRAWN + 1))
    over = run.queries[7].model_copy(update={"calls": 99})
    object.__setattr__(run, "steps", (*run.steps[:7], over, *run.steps[8:]))
    chart = budget_chart(run)
    assert chart is not None
    bars = [shape for shape in chart.panels[0].shapes if isinstance(shape, Bar)]
    assert len(bars) <= DRAWN
    assert [bar.title for bar in bars if bar.style == "over"] == [f"step 8: 99 of {over.budget}"]
    assert "of 3 that comes nearest" in chart.caption
    points = [(float(x), float(x % 2)) for x in range(2 * DRAWN)]
    chart = line_chart({("", "ranked"): points}, title="", label="", x="step", y="y")
    (line,) = (shape for shape in chart.panels[0].shapes if isinstance(shape, Drawn))
    assert len(line.points) == DRAWN
    assert {y for _, y in line.points} == {0.5}
    assert chart.caption == "Points are means of 2 steps."
