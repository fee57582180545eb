"""The comparison of policies as a user types it, stopped on the way and taken up again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_fixtures import events_of
from shapes import make_pictures
from test_cli import ROOT, bas_opd

from bas_opd.reproduce.arms import BASELINES
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.table import MARKERS
from bas_opd.run.verify import verify

SAVED = ("svg", "pdf")
SMALL = ("rollout.prompts_per_step=4", "rollout.per_prompt=4", "rollout.max_response_tokens=5")


@pytest.fixture
def arguments(tmp_path: Path, small_qwen35: Path) -> list[str]:
    for split, (n, seed) in {"train": (16, 1), "test": (12, 2), "val": (12, 3)}.items():
        make_pictures(tmp_path / "data" / split, n=n, seed=seed)
    options = {
        "--scale": "small",
        "--out": "out",
        "--data": "data",
        "--base": small_qwen35,
        "--arms": "base,full,learned25",
        "--seeds": 2,
        "--steps": 2,
        "--jobs": 1,
        "--device": "cpu",
        "--train-n": 16,
        "--test-n": 12,
    }
    words = [str(word) for option in options.items() for word in option]
    return ["reproduce", "policies", *words, *SMALL]


def stopped_after_the_first_run(arguments: list[str], folder: Path) -> subprocess.Popen:
    """Type the command, and Ctrl-C once its first trained run has left a result."""
    code = "from bas_opd.cli.main import app; app(prog_name='bas-opd')"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while not (folder / "out" / "results" / "full-0.json").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    return process


def test_a_comparison_that_was_stopped_resumes_and_makes_its_table(
    arguments: list[str], tmp_path: Path
) -> None:
    assert stopped_after_the_first_run(arguments, tmp_path).returncode == 75
    results = tmp_path / "out" / "results"
    first = {path: path.read_bytes() for path in results.glob("*.json")}
    assert 2 <= len(first) < 5

    again = bas_opd(*arguments, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"{len(first)} of 5 results exist already." in again.stderr
    assert all(path.read_bytes() == content for path, content in first.items())
    names = ["base", "full-0", "full-1", "learned25-0", "learned25-1", "questions"]
    assert sorted(path.stem for path in results.iterdir()) == names

    for result in read_results(results):
        assert result.n == len(result.outcomes) == 12
        if result.seed is None:
            assert result.cost is None
            continue
        run = tmp_path / "out" / "runs" / f"{result.arm}-{result.seed}"
        steps = [event for event in events_of(run) if event["event"] == "step"]
        assert result.cost is not None
        assert result.steps is not None
        assert result.steps.calls == [len(step["selected"]) for step in steps]
        assert len(steps) == 2
        assert result.cost.overrun == 0
        ratio = {"full": 1, "learned25": 0.25}[result.arm]
        assert result.cost.calls == sum(int(ratio * len(step["candidates"])) for step in steps)

    page = tmp_path / "page.md"
    page.write_text(f"Results\n\n{MARKERS[0]}\n{MARKERS[1]}\n\nThe end\n")
    printed = bas_opd("reproduce", "table", results, cwd=tmp_path)
    assert printed.stdout == again.stdout
    assert "| learned25 | 2 |" in printed.stdout
    assert bas_opd("reproduce", "table", results, "--write", page, cwd=tmp_path).returncode == 0
    assert printed.stdout in page.read_text()


def test_a_scale_without_weights_here_points_to_the_recipes(tmp_path: Path) -> None:
    result = bas_opd("reproduce", "policies", "--scale", "4b", "--out", "out", cwd=tmp_path)
    assert result.returncode == 2
    assert "there are presets, qwen3.5-4b and qwen3.5-9b" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_table_and_a_figure_of_the_paper_train_what_they_need(
    tmp_path: Path, small_qwen35: Path
) -> None:
    for split, (n, seed) in {"train": (16, 1), "test": (12, 2), "val": (12, 3)}.items():
        make_pictures(tmp_path / "data" / split, n=n, seed=seed)
    common = (
        *("--out", "out", "--data", "data", "--base", small_qwen35, "--device", "cpu"),
        *("--train-n", "16", "--test-n", "12", "--jobs", "1", *SMALL),
        *("run.steps=2", "run.checkpoint_every=1", "run.keep_every=1", "select.replay_start=4"),
    )
    drawn = bas_opd("reproduce", "figure3", *common, cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    names = [f"figure3-{source}.{end}" for source in ("training", "held-out") for end in SAVED]
    assert [Path(line).name for line in drawn.stdout.splitlines()] == names
    assert (tmp_path / "out" / "runs" / "learned25-audited" / "audit").is_dir()
    printed = bas_opd("reproduce", "table8", *common, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    policies = ("full", "random25", "entropy25", "learned25")
    rows = [line.split(" | ")[0] for line in printed.stdout.splitlines()[2:6]]
    assert rows == [f"| {policy}" for policy in policies]


def test_the_list_names_every_table_and_figure(tmp_path: Path) -> None:
    listed = bas_opd("reproduce", "--list", cwd=tmp_path).stdout
    for name in (*(f"table{n}" for n in range(1, 9)), *(f"figure{n}" for n in range(6))):
        assert f"\n{name} " in f"\n{listed}"


def test_the_study_of_table_2_runs_from_its_first_run_to_its_table(
    tmp_path: Path, small_qwen35: Path
) -> None:
    for split, (n, seed) in {"train": (16, 1), "test": (12, 2), "val": (12, 3)}.items():
        make_pictures(tmp_path / "data" / split, n=n, seed=seed)
    declared = (ROOT / "docs/results/table2/study.toml").read_text(encoding="utf-8")
    small = {
        r"steps = 32": f'steps = 3\nbase = "{small_qwen35}"',
        r"train = 3120": "train = 16",
        r"test = 840": "test = 12",
        r"val = 840": "val = 12",
        r'settings = \["model.precision.*\]': f"settings = {list(SMALL)}",
        r"evaluate_every = 16": "evaluate_every = 2",
        r"evaluate_on = 140": "evaluate_on = 8",
        r"seeds = .*": 'seeds = "200-201"',
        r'settings = \["rollout.*select.*\]': 'settings = ["select.replay_start=2"]',
        r'settings = \["rollout.*\]\n': "",
        "(?:draft = true\n)?task =": "draft = true\ntask =",
    }
    for line, instead in small.items():
        declared, found = re.subn(rf"^{line}", lambda _, it=instead: it, declared, flags=re.M)
        assert found, line
    (tmp_path / "table2.toml").write_text(declared)
    command = ("reproduce", "study", "table2.toml", "--out", "out", "--data", "data")
    options = ("--jobs", "1", "--device", "cpu", "--yes")

    sweep = ("--lr-sweep", "1e-4", "--seeds", "25", "--arms", "dapo,learned25")
    swept = bas_opd(*command, *options, *sweep, cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout.startswith("| learning rate | dapo | learned25 |")
    refused = bas_opd(*command, *options, cwd=tmp_path)
    assert refused.returncode == 2
    assert "is a draft: its learning rates are not chosen yet" in " ".join(refused.stderr.split())
    (tmp_path / "table2.toml").write_text(declared.replace("draft = true\n", ""))
    made = bas_opd(*command, *options, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    arms = [*(arm.name for arm in BASELINES), "full", "learned25", "covering-prompts"]
    for arm in arms:
        # Accuracy, cost, what it learned from, and at equal cost.
        assert made.stdout.count(f"\n| {arm} | ") == 4, arm
    assert made.stdout.count("superiority: ") == 6
    assert "not evaluated" not in made.stdout
    for each in read_results(tmp_path / "out/results"):
        assert [point.step for point in each.curve] == ([0, 2, 3] if each.cost else [])
    runs = sorted(path.name for path in (tmp_path / "out/runs").iterdir())
    for run in runs:
        assert verify(tmp_path / "out/runs" / run).is_sound, run

    shown = bas_opd("reproduce", "table2", "--out", "t", "--results", "out/results", cwd=tmp_path)
    assert shown.stdout.strip() == made.stdout.strip()


def test_a_study_is_run_in_parts_and_its_table_is_made_of_its_results(
    tmp_path: Path, small_qwen35: Path
) -> None:
    for split, (n, seed) in {"train": (16, 1), "test": (12, 2)}.items():
        make_pictures(tmp_path / "data" / split, n=n, seed=seed)
    (tmp_path / "mine.toml").write_text(
        f"""
        title = "Fewer rollouts"
        base = "{small_qwen35}"
        steps = 2
        train = 16
        test = 12
        settings = {list(SMALL[::2])}
        arm = [
            {{ name = "full", learning_rate = 1e-4, seeds = "0-1" }},
            {{ name = "fewer1", learning_rate = 3e-4, seeds = "0-1" }},
        ]
        [[comparison]]
        arm = "fewer1"
        against = "full"
        claim = "superiority"
        """
    )
    command = ("reproduce", "study", "mine.toml", "--out", "out", "--data", "data", "--jobs", "1")
    first = bas_opd(*command, "--device", "cpu", "--seeds", "0", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "superiority: not evaluated**; 2 runs of it are missing." in first.stdout
    whole = bas_opd(*command, "--device", "cpu", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "3 of 5 results exist already." in whole.stderr
    assert re.search(r"fewer1 against full, superiority: (not )?met\*\*; ", whole.stdout)
    assert bas_opd("reproduce", "table", "out", cwd=tmp_path).stdout == whole.stdout

    costs = {(each.arm, each.seed): each.cost for each in read_results(tmp_path / "out/results")}
    for seed in (0, 1):
        full, fewer = costs["full", seed], costs["fewer1", seed]
        assert full is not None
        assert fewer is not None
        assert full.candidates == 8 * fewer.candidates
        assert full.prefilled_tokens == fewer.prefilled_tokens
        assert fewer.calls == fewer.candidates
        assert fewer.total_tokens == sum(
            tokens or 0
            for tokens in (
                fewer.prefilled_tokens,
                fewer.sampled_tokens,
                fewer.processed_tokens,
                *[fewer.student_tokens] * 3,
            )
        )
        assert 0 < (fewer.total_tokens or 0) < (full.total_tokens or 0)
