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

from bas_opd.errors import ModelError
from bas_opd.model.loading import open_model

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


def index_to(folder: Path, name: str) -> None:
    """Let an index name the file of all weights, in place of the weights."""
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pickled(path: Path, mark: Path) -> None:
    torch.save({"weight": Payload(mark)}, path)


@pytest.mark.parametrize(
    "name", ["weights.bin", "../weights.bin", "/weights.bin", "sub/a.safetensors"]
)
def test_an_index_that_names_anything_but_safetensors_of_its_folder_is_refused(
    name: str, model: Path, mark: Path, train: Train, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    pickled(tmp_path / "weights.bin", mark)
    pickled(folder / "weights.bin", mark)
    index_to(folder, str(tmp_path / name[1:]) if name.startswith("/") else name)
    save_file({"unused": torch.zeros(1)}, folder / "unused.safetensors")
    ended = train(tmp_path / "run", f"model.path={folder}")
    assert ended.is_explained(1, "which is no safetensors file of this folder"), ended
    # As export, audit and evaluation open it.
    with pytest.raises(ModelError, match="no safetensors file of this folder"):
        open_model(folder, device="cpu")
    assert not mark.exists()


def test_adapters_beside_a_model_and_weights_named_by_its_config_are_refused(
    model: Path, mark: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    pickled(folder / "adapter_model.bin", mark)
    with pytest.raises(ModelError, match="transformers_weights"):
        open_model(folder, device="cpu")
    shutil.copyfile(model / "config.json", folder / "config.json")
    settings = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="holds adapters"):
        open_model(folder, device="cpu")
    assert not mark.exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": "PROMPT_TUNING"},
        {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "antigravity"},
    ],
)
def test_adapters_of_another_kind_are_refused(
    settings: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file({"unused": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="plain LoRA"):
        open_model(model, device="cpu", adapter=adapter)


def test_a_run_that_was_given_a_pickled_adapter_exports_nothing(
    model: Path, mark: Path, train: Train, tmp_path: Path
) -> None:
    base = shutil.copytree(model, tmp_path / "base")
    run = tmp_path / "run"
    assert train(run, f"model.path={base}", "lora.rank=2", "run.steps=1").code == 0
    pickled(base / "adapter_model.bin", mark)
    shutil.copyfile(run / "model" / "adapter_config.json", base / "adapter_config.json")
    ended = bas_opd("export", run, tmp_path / "out")
    assert ended.is_explained(1, "holds adapters"), ended
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


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
