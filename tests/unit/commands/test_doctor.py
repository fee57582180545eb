"""What the doctor says, and when it is a problem."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from run_fixtures import small_config

from bas_opd.commands import doctor
from bas_opd.commands.doctor import Finding, examine


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
    assert (finding.level, finding.mend) == ("problem", "Run `pip install 'bas-opd[lora]'`.")


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_problem(
    home: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert by_name(examine())["GPU"].level == "warning"
    config = small_config(home, small_qwen35, "model.device=cuda")
    assert by_name(examine(config))["GPU"].level == "problem"


def test_a_gpu_without_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        name, total_memory = "Old GPU", 16_000_000_000

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Old)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    finding = by_name(examine())["GPU"]
    assert (finding.level, finding.text) == ("warning", "Old GPU, 16 GB, no bfloat16")


def test_missing_model_and_data_are_problems(home: Path, small_qwen35: Path) -> None:
    config = small_config(home, home / "nowhere", f"data.path={home / 'nothing'}")
    findings = by_name(examine(config))
    assert (findings["model"].level, findings["data"].level) == ("problem", "problem")

    bare = Path(shutil.copytree(small_qwen35, home / "bare"))
    (bare / "model.safetensors").unlink()
    finding = by_name(examine(small_config(home, bare)))["model"]
    assert (finding.level, finding.text) == ("problem", f"{bare}: no *.safetensors")


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
