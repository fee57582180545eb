"""What the doctor says, and when it is a problem."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from run_fixtures import TINY, small_config, small_run, small_settings
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.commands import doctor
from bas_opd.commands.doctor import EXTRAS, Finding, examine
from bas_opd.config import load_config
from bas_opd.files import sha256
from bas_opd.model import delta
from bas_opd.run import footprint


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


@pytest.fixture
def home(small_qwen35: Path, tmp_path: Path) -> Path:
    small_config(tmp_path, small_qwen35)
    return tmp_path


def test_this_machine_can_train_the_small_model(home: Path, small_qwen35: Path) -> None:
    findings = by_name(examine(small_config(home, small_qwen35)))
    assert [f.what for f in findings.values() if f.level == "problem"] == []
    assert {"Python", "torch", "transformers", "pillow", "GPU", "disk"} <= set(findings)
    assert findings["data"].text.endswith("16 examples, 13 with a crop")
    assert "needed" in findings["disk"].text
    assert not (home / "run").exists()


def without(monkeypatch: pytest.MonkeyPatch, name: str, version: str | None = None) -> None:
    real = importlib.metadata.version

    def pretended(package: str) -> str:
        if package != name:
            return real(package)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(importlib.metadata, "version", pretended)


def test_a_version_out_of_range_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "2.0.1+cu118")
    finding = by_name(examine())["torch"]
    assert finding.level == "problem"
    assert finding.text.startswith("2.0.1+cu118, but ")
    assert "pip install 'torch" in finding.mend


def test_peft_is_a_problem_only_where_adapters_are_trained(
    home: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "peft")
    assert by_name(examine())["peft"].level == "warning"
    finding = by_name(examine(small_config(home, small_qwen35, "lora.rank=4")))["peft"]
    assert finding.level == "problem"
    assert finding.mend.startswith("Run `pip install 'peft>=")


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_problem(
    home: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert by_name(examine())["GPU"].level == "warning"
    config = small_config(home, small_qwen35, "model.device=cuda")
    assert by_name(examine(config))["GPU"].level == "problem"


def test_a_gpu_is_named_with_what_it_trains_linear_attention_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class New:
        name, total_memory = "New GPU", 80_000_000_000

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: New)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(delta, "implementation", lambda *_, **__: "chunked")
    finding = by_name(examine())["GPU"]
    assert finding.level == "ok"
    assert finding.text == (
        "New GPU, 80 GB, bfloat16 yes; Qwen3.5's linear attention trains with bas-opd's own chunks"
    )


def test_a_gpu_without_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        name, total_memory = "Old GPU", 16_000_000_000

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Old)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    finding = by_name(examine())["GPU"]
    assert (finding.level, finding.text) == ("warning", "Old GPU, 16 GB, no bfloat16")


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_slows_rollouts_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    for value in ("", "max_split_size_mb:64", "expandable_segments:False"):
        monkeypatch.setenv(name, value)
        assert "GPU memory" not in by_name(examine())
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments:True")
    finding = by_name(examine())["GPU memory"]
    assert finding.level == "warning"
    assert name in finding.text
    assert name in finding.mend


def test_missing_model_and_data_are_problems(home: Path, small_qwen35: Path) -> None:
    config = small_config(home, home / "nowhere", f"data.path={home / 'nothing'}")
    findings = by_name(examine(config))
    assert (findings["model"].level, findings["data"].level) == ("problem", "problem")

    bare = Path(shutil.copytree(small_qwen35, home / "bare"))
    (bare / "model.safetensors").unlink()
    finding = by_name(examine(small_config(home, bare)))["model"]
    assert finding.level == "problem"
    assert finding.text.startswith(f"No safetensors weights could be read from {bare}.")


def test_a_folder_that_cannot_be_written_is_a_problem(
    home: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    finding = by_name(examine(small_config(home, small_qwen35)))["runs folder"]
    assert finding.level == "problem"
    assert finding.text.endswith("cannot be written: Read-only file system")


def test_too_little_disk_is_a_problem(
    home: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(home)._replace(free=1000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert by_name(examine(small_config(home, small_qwen35)))["disk"].level == "problem"


BLANK = "blank"
"""The data without answers."""


@pytest.mark.parametrize(
    ("settings", "what", "says"),
    [
        (("select.query_ratio=0.01",), "data", "K pays for no query at any step"),
        (("rollout.prompts_per_step=99",), "data", "fewer than the 99 prompts"),
        (("data.max_prompt_tokens=9",), "data", "more than the 9 allowed"),
        (("select.budget=processed_tokens", "select.query_ratio=0.05"), "data", "K pays for no"),
        ((f"data.path={BLANK}",), "data", "has an answer, which grpo needs"),
        (("eval.every=2", "eval.data=nowhere"), "evaluation", "nowhere"),
        (("run.output=data",), "runs folder", "holds something that is not a run"),
        (("model.device=mps",), "GPU", "mps is neither"),
        (("judge.url=http://127.0.0.1:9", "judge.model=m"), "judge", "127.0.0"),
    ],
)
def test_what_train_refuses_is_found_in_the_same_words(
    home: Path,
    small_qwen35: Path,
    settings: tuple[str, ...],
    what: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(home)
    shutil.copytree(home / "data", home / BLANK)
    lines = (home / BLANK / "records.jsonl").read_text().splitlines()
    rows = [json.dumps({**json.loads(line), "answer": ""}) for line in lines]
    (home / BLANK / "records.jsonl").write_text("\n".join(rows) + "\n")
    manifest = json.loads((home / BLANK / "manifest.json").read_text())
    manifest["records_sha256"] = sha256(home / BLANK / "records.jsonl")
    (home / BLANK / "manifest.json").write_text(json.dumps(manifest))

    config = "grpo" if any("judge" in each or BLANK in each for each in settings) else str(TINY)
    own = [each for each in small_settings(home, small_qwen35) if not each.startswith("select.")]
    finding = by_name(examine(load_config(config, [*own, *settings])))[what]
    assert finding.level == "problem"
    assert says in finding.text
    assert finding.text in CliRunner().invoke(app, ["train", config, *own, *settings]).stderr


def test_a_run_of_other_settings_and_a_changed_picture_are_found(
    home: Path, small_qwen35: Path
) -> None:
    run = small_run(home, small_qwen35, "run.steps=1")
    same = by_name(examine(small_config(home, small_qwen35)))
    assert {same[what].level for what in ("runs folder", "data")} == {"ok"}
    other = by_name(examine(small_config(home, small_qwen35, "run.seed=7")))["runs folder"]
    assert other.level == "problem"
    assert f"The run in {run} was started with other settings" in other.text
    picture = next((home / "data" / "images").iterdir())
    picture.write_bytes(picture.read_bytes() + b"x")
    found = by_name(examine(small_config(home, small_qwen35)))["data"]
    assert found.level == "problem"
    assert f"images/{picture.name} has changed since" in found.text


def test_a_set_that_is_still_to_be_drawn_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    findings = by_name(examine(load_config("tiny", ["model.path=small"])))
    assert findings["data"].text == "finesearch: `bas-opd train` draws 96 examples"
    assert {findings[what].level for what in ("model", "data", "disk")} == {"ok"}
    assert not list(tmp_path.iterdir())


def test_a_host_too_small_for_what_it_would_keep_is_a_problem(
    home: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "host memory" not in by_name(examine(small_config(home, small_qwen35)))
    config = small_config(home, small_qwen35, "optim.offload=true")
    assert by_name(examine(config))["host memory"].level == "ok"
    monkeypatch.setattr(footprint, "free_host_memory", lambda: 1000)
    finding = by_name(examine(config))["host memory"]
    assert finding.level == "problem"
    assert "but only 0.0 GB are free" in finding.text


def test_it_knows_what_every_optional_package_is_for() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    listed = [line for extra in project["optional-dependencies"].values() for line in extra]
    assert {Requirement(line).name for line in listed} <= EXTRAS.keys()
