from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bas_opd import files
from bas_opd.errors import ModelError
from bas_opd.evaluate.weights import find_checkpoint, weights_fingerprint
from bas_opd.files import sha256
from bas_opd.model.base import small_base
from bas_opd.model.folder import model_hashes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(small_base(), tmp_path / "copy")


def flip(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)


def test_a_model_is_known_by_any_of_its_bytes_and_by_its_settings(model: Path) -> None:
    assert model_hashes(model) == model_hashes(small_base())
    flip(model / "model.safetensors")
    other = weights_fingerprint(model_hashes(model))
    assert other != weights_fingerprint(model_hashes(small_base()))
    (model / "generation_config.json").write_text("{}")
    assert weights_fingerprint(model_hashes(model)) != other
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="No safetensors weights"):
        model_hashes(model)


def test_the_hashes_are_those_that_a_run_records_of_its_model(model: Path) -> None:
    (model / "README.md").write_text("No part of the model.")
    recorded = {file.name: sha256(file) for file in model.iterdir()}
    del recorded["README.md"]
    assert model_hashes(model) == recorded
    backwards = dict(reversed(recorded.items()))
    assert weights_fingerprint(backwards) == weights_fingerprint(model_hashes(model))


def test_a_file_is_read_once_as_long_as_nothing_writes_to_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(path: Path) -> str:
        read.append(path.name)
        return sha256(path)

    monkeypatch.setattr(files, "sha256", reading)
    memory = tmp_path / "weights.json"
    first = model_hashes(model, memory=memory)
    assert sorted(read) == sorted(first)
    read.clear()
    assert model_hashes(model, memory=memory) == first
    assert read == []

    tensors = model / "model.safetensors"
    before = tensors.stat()
    flip(tensors)
    os.utime(tensors, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = model_hashes(model, memory=memory)
    assert read == ["model.safetensors"], "also where the time of writing was set back"
    assert changed != first


def test_two_models_share_a_memory_without_being_confused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    flip(other / "model.safetensors")
    memory = tmp_path / "weights.json"
    real = Path.stat

    def alike(path: Path, **options: Any) -> Any:
        mode = real(path, **options).st_mode
        return SimpleNamespace(
            st_mode=mode, st_dev=1, st_ino=1, st_size=1, st_mtime_ns=1, st_ctime_ns=1
        )

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", alike)
        hashes = [model_hashes(each, memory=memory) for each in (model, other)]
    assert hashes == [model_hashes(model), model_hashes(other)]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"a": 1}'])
def test_a_damaged_memory_is_replaced(damage: str, model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "weights.json"
    memory.write_text(damage)
    assert model_hashes(model, memory=memory) == model_hashes(model)
    assert str(model) not in memory.read_text()
    assert not list(tmp_path.glob(".*"))


def adapters(folder: Path, base: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (folder / "adapter_model.safetensors").write_bytes(b"trained")
    return folder


def test_a_run_a_model_and_adapters_are_found_and_anything_else_is_an_error(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    with pytest.raises(ModelError, match="neither a finished run"):
        find_checkpoint(str(run))
    (run / "model" / "config.json").write_text("{}")
    for given in (run, run / "model"):
        found = find_checkpoint(str(given))
        assert (found.folder, found.adapter) == (run / "model", None)
    folder = adapters(tmp_path / "lora" / "model", model)
    for given in (folder.parent, folder):
        found = find_checkpoint(str(given))
        assert (found.folder, found.adapter) == (model, folder)


def test_the_hashes_of_adapters_cover_their_base(model: Path, tmp_path: Path) -> None:
    folder = adapters(tmp_path / "lora", model)
    memory = tmp_path / "weights.json"
    first = find_checkpoint(str(folder)).hashes(memory=memory)
    assert first["adapter_model.safetensors"] == sha256(folder / "adapter_model.safetensors")
    assert first["base/model.safetensors"] == sha256(model / "model.safetensors")
    for changed in (folder / "adapter_model.safetensors", model / "model.safetensors"):
        flip(changed)
        second = find_checkpoint(str(folder)).hashes(memory=memory)
        assert weights_fingerprint(second) != weights_fingerprint(first)
        first = second


def test_pickled_adapters_and_a_missing_base_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = adapters(tmp_path / "pickled", model)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="Pickled"):
        find_checkpoint(str(folder)).hashes()
    gone = adapters(tmp_path / "gone", tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"base model .*nowhere of the adapters .* --base FOLDER"):
        find_checkpoint(str(gone))
