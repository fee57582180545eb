"""`bas-opd report` as typed: what it prints, writes and leaves alone."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from report_fixtures import audit, evaluate, synthetic_run
from run_fixtures import small_run
from shapes import make_pictures
from typer.testing import CliRunner, Result

from bas_opd.cli.main import app
from bas_opd.data.records import PreparedSet


def bas_opd(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("pictures") / "set", n=60, seed=3)


def test_a_trained_run_gets_its_page_and_stays_sound(small_qwen35: Path, tmp_path: Path) -> None:
    run = small_run(tmp_path, small_qwen35, "run.steps=3")
    result = bas_opd("report", run)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("learned-")
    assert f"The page is {run / 'report.html'}, the card {run / 'card.md'}." in result.stdout
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<article>") > 0
    assert "10 checks of the records hold" in page
    assert bas_opd("verify", run).exit_code == 0
    assert bas_opd("report", run).exit_code == 0
    assert (run / "report.html").read_text(encoding="utf-8") == page


def processor_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_report_needs_no_torch_and_less_than_three_seconds(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    run = synthetic_run(tmp_path / "run", pictures, steps=111, prompts=28, per_prompt=8, shown=4)
    evaluate(run, [True, False] * 150)
    audit(run)
    code = (
        "import sys; from bas_opd.cli.main import app\n"
        "try: app(['report', sys.argv[1]])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'svglib', 'reportlab', 'scipy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    # Time of the processor, and the best of three, for a test shares its machine with others.
    assert min(processor_seconds([sys.executable, "-c", code, str(run)]) for _ in range(3)) < 3.0
    assert (run / "report.html").stat().st_size < 3e6


def test_several_runs_are_compared_on_one_page(
    pictures: PreparedSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        synthetic_run(tmp_path / policy, pictures, steps=3, policy=policy)
        for policy in ("learned", "full")
    ]
    monkeypatch.chdir(tmp_path)
    result = bas_opd("report", *runs)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report" / "report.html").exists()
    assert (tmp_path / "report" / "card.md").exists()
    assert not (runs[0] / "report.html").exists()
    assert bas_opd("report", *runs, "--out", tmp_path / "there").exit_code == 0
    assert (tmp_path / "there" / "report.html").exists()


def test_a_training_set_that_moved_is_named_with_data(tmp_path: Path) -> None:
    data = make_pictures(tmp_path / "data", n=24, seed=3)
    run = synthetic_run(tmp_path / "run", data, steps=3)
    moved = (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert bas_opd("report", run).exit_code == 0
    assert "data:image/jpeg" not in (run / "report.html").read_text(encoding="utf-8")
    assert bas_opd("report", run, "--data", moved).exit_code == 0
    assert "data:image/jpeg" in (run / "report.html").read_text(encoding="utf-8")
    other = make_pictures(tmp_path / "other", n=12, seed=4).folder
    result = bas_opd("report", run, "--data", other)
    assert result.exit_code == 1
    assert "is not the set that the run" in result.stderr
    result = bas_opd("report", run, tmp_path, "--data", moved)
    assert result.exit_code == 2
    assert "--data is for the page of one run" in result.stderr


def test_what_cannot_be_reported_is_explained(pictures: PreparedSet, tmp_path: Path) -> None:
    result = bas_opd("report", tmp_path)
    assert result.exit_code == 1
    assert "There is no run in" in result.stderr
    run = synthetic_run(tmp_path / "run", pictures, steps=3)
    (tmp_path / "file").write_text("")
    result = bas_opd("report", run, "--out", tmp_path / "file")
    assert result.exit_code == 1
    assert "Name another folder with --out" in result.stderr
