"""A run that version 0.1.0 has left after two steps, with its model and its data.

It was made with the settings of `conftest.py`, a Qwen3.5 of 34,000 parameters and eight pictures.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Train
from run_states import assert_same_run
from safetensors.torch import load_file
from test_runs import assert_sound

from bas_opd.commands.export import export
from bas_opd.run.checkpoint import published, read_checkpoint

ARCHIVE = Path(__file__).with_name("run_of_0_1.tar.xz")


SETTINGS = ("model.path=model", "data.path=data", "run.keep_checkpoints=1")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with `run`, `model` and `data`, where the run was started."""
    home = tmp_path_factory.mktemp("left")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home, filter="data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        yield home


@pytest.fixture(scope="module")
def undisturbed(left: Path, train: Train) -> Path:
    """The same run from its start, by this version."""
    ended = train(1, left / "undisturbed", *SETTINGS)
    assert [each.code for each in ended] == [0], ended
    return left / "undisturbed"


@pytest.mark.parametrize("reshard", ["false", "true"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_processes_resumes_it(
    size: int, reshard: str, left: Path, train: Train, undisturbed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    run = shutil.copytree(left / "run", tmp_path / "run")
    ended = train(size, run, *SETTINGS, f"shard.reshard={reshard}")
    assert [each.code for each in ended] == [0] * size, ended
    assert "Resuming after step 2 of 4" in ended[0].output
    assert_same_run(run, undisturbed)
    assert_sound(run)


def test_its_checkpoint_is_exported(left: Path, tmp_path: Path) -> None:
    (path,) = published(left / "run" / "checkpoints")
    student = read_checkpoint(path).tensors["student"]
    export(left / "run", tmp_path / "out", step=2)
    exported, base = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "out", left / "model")
    )
    assert exported.keys() == base.keys() == student.keys()
    for name, tensor in exported.items():
        assert tensor.equal(student[name])
    assert any(not exported[name].equal(base[name]) for name in base)
