"""Loading a model, a config or a checkpoint never runs what it brings."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from process import Payload, Train, bas_opd
from safetensors.torch import load_file, save_file

AUTO_MAP = {
    "AutoConfig": "modeling_own.Own",
    "AutoModel": "modeling_own.Own",
    "AutoModelForImageTextToText": "modeling_own.Own",
    "AutoProcessor": "modeling_own.Own",
    "AutoTokenizer": ["modeling_own.Own", "modeling_own.Own"],
    "AutoImageProcessor": "modeling_own.Own",
}


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that exists once foreign code has run."""
    return tmp_path / "foreign code ran"


@pytest.fixture
def armed(model: Path, mark: Path, tmp_path: Path) -> Path:
    """A model folder whose every configuration points to code of its own."""
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "modeling_own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: ...\n")
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        change(folder / name, auto_map=AUTO_MAP)
    return folder


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_code_in_a_model_folder_is_never_run_and_not_passed_on(
    armed: Path, mark: Path, train: Train, tmp_path: Path
) -> None:
    ended = train(tmp_path / "run", f"model.path={armed}")
    assert not mark.exists()
    assert ended.code == 0, ended.output
    assert not list((tmp_path / "run").rglob("*.py"))


def test_an_architecture_that_only_its_own_code_knows_is_refused(
    armed: Path, mark: Path, train: Train, tmp_path: Path
) -> None:
    change(armed / "config.json", model_type="own")
    ended = train(tmp_path / "run", f"model.path={armed}")
    assert ended.code == 1
    assert "Traceback" not in ended.output
    assert not mark.exists()


def test_trust_cannot_be_set(train: Train, tmp_path: Path) -> None:
    ended = train(tmp_path / "run", "model.trust_remote_code=true")
    assert ended.is_explained(2, "trust_remote_code"), ended


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickled_weights_are_never_loaded(
    name: str, model: Path, mark: Path, train: Train, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps({"weight": Payload(mark)}))
    ended = train(tmp_path / "run", f"model.path={folder}")
    assert ended.is_explained(1, "No safetensors weights could be read"), ended
    assert not mark.exists()
    assert not (tmp_path / "run" / "run.json").exists()


def test_weights_with_a_parameter_missing_are_refused(
    model: Path, train: Train, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    weights: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ended = train(tmp_path / "run", f"model.path={folder}")
    assert ended.is_explained(1, "They would be random"), ended


def test_a_yaml_file_with_an_object_in_it_is_refused(mark: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"run: !!python/object/apply:builtins.open ['{mark}', 'w']\n")
    ended = bas_opd("train", config)
    assert ended.code == 2
    assert "Traceback" not in ended.output
    assert not mark.exists()
