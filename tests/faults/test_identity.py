"""Everything that a run's numbers depend on is known by its bytes, and a change is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process import Train, ask_to_stop, at, bas_opd, resumes_to
from safetensors.torch import load_file, save_file

from bas_opd.errors import ModelError
from bas_opd.evaluate.weights import find_checkpoint
from bas_opd.files import sha256
from bas_opd.rollout import Sampler
from bas_opd.run.record_file import read_records

pytestmark = pytest.mark.slow


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def another_template(model: Path) -> None:
    file = model / "chat_template.jinja"
    file.write_text(file.read_text() + "\n")


def another_epsilon(model: Path) -> None:
    settings = json.loads((model / "config.json").read_text())
    settings["text_config"]["rms_norm_eps"] = 0.1
    change(model / "config.json", text_config=settings["text_config"])


def another_mean(model: Path) -> None:
    file = next(f for f in model.glob("*processor_config.json") if "image_mean" in f.read_text())
    file.write_text(file.read_text().replace('"image_mean"', '"image_mean" '))


def another_end(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')


def another_tokenizer(model: Path) -> None:
    file = model / "tokenizer.json"
    file.write_text(file.read_text() + " ")


def one_frozen_weight(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    largest = max(tensors, key=lambda name: tensors[name].numel())
    tensors[largest].view(-1)[1] += 0.5
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


@pytest.fixture
def own(model: Path, data: Path, train: Train, tmp_path: Path) -> Callable[..., Any]:
    """A stopped run with a model folder and a set of its own, as `own(*words)` resumes it."""
    shutil.copytree(model, tmp_path / "model")
    shutil.copytree(data, tmp_path / "data")
    paths = (f"model.path={tmp_path / 'model'}", f"data.path={tmp_path / 'data'}", "lora.rank=2")
    ended = train(
        tmp_path / "run", *paths, fault=at(Sampler, "generate", ask_to_stop, call=3, before=True)
    )
    assert ended.code == 75, ended.output

    def resumed(*words: str) -> Any:
        return train(tmp_path / "run", *paths, *words)

    return resumed


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (another_template, "chat_template.jinja"),
        (another_epsilon, "config.json"),
        (another_mean, "processor_config.json"),
        (another_end, "generation_config.json"),
        (another_tokenizer, "tokenizer.json"),
        (one_frozen_weight, "model.safetensors"),
    ],
)
def test_a_changed_file_of_the_model_is_refused_by_name(
    act: Callable[[Path], None], name: str, own: Callable[..., Any], tmp_path: Path
) -> None:
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    act(tmp_path / "model")
    ended = own()
    assert ended.is_explained(1, f"{name} has changed since it was started"), ended
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before


def test_a_changed_file_is_accepted_on_request_and_stays_on_record(
    own: Callable[..., Any], tmp_path: Path
) -> None:
    another_template(tmp_path / "model")
    assert own("--accept-changes").code == 0
    events = list(read_records(tmp_path / "run" / "records.jsonl"))
    (resumed,) = [event for event in events if event["event"] == "resumed"]
    assert list(resumed["accepted_changes"]) == ["chat_template.jinja"]
    verified = bas_opd("verify", tmp_path / "run")
    assert verified.code == 0
    assert "changed files were accepted: chat_template.jinja" in verified.output
    # From then on it is the file of this run.
    assert own("run.steps=5").code == 0


def test_a_picture_replaced_by_another_valid_one_is_refused_by_name(
    own: Callable[..., Any], tmp_path: Path
) -> None:
    first, second, *_ = sorted((tmp_path / "data" / "images").iterdir())
    shutil.copyfile(first, second)
    ended = own()
    assert ended.is_explained(1, f"images/{second.name} has changed since the set"), ended
    assert own("--accept-changes").code == 0
    assert own("run.steps=5").code == 0


def test_a_run_of_an_older_version_resumes_with_the_identity_it_has(
    stopped: Path, train: Train, whole: Path
) -> None:
    identity = json.loads((stopped / "run.json").read_text())
    identity.pop("base_files", None)
    identity["dataset"].pop("pictures", None)
    (stopped / "run.json").write_text(json.dumps(identity))
    resumes_to(stopped, whole, train)


def test_a_file_is_read_once_and_again_when_it_was_written_to(
    own: Callable[..., Any], tmp_path: Path
) -> None:
    memory = tmp_path / "run" / "hashes.json"
    before = json.loads(memory.read_text())
    assert own().code == 0
    added = json.loads(memory.read_text()).items() - before.items()
    assert len(added) == len(list((tmp_path / "run" / "model").iterdir()))


def test_adapters_are_evaluated_on_the_base_that_they_were_trained_from(
    own: Callable[..., Any], tmp_path: Path
) -> None:
    assert own().code == 0
    found = find_checkpoint(str(tmp_path / "run"))
    assert found.step == 4
    assert found.hashes()["base/model.safetensors"] == sha256(
        tmp_path / "model" / "model.safetensors"
    )
    one_frozen_weight(tmp_path / "model")
    with pytest.raises(ModelError, match=r"base/model\.safetensors .* not what the run recorded"):
        found.hashes()
    ended = bas_opd("export", tmp_path / "run", tmp_path / "out")
    assert ended.is_explained(1, "model.safetensors differs"), ended
