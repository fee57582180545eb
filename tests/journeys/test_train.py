"""Whole runs through `train`: what the teacher saw, what was recorded, what bad input says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from PIL import Image, ImageFile
from run_fixtures import SMALL_STEPS, Silent, tiny
from run_states import OWN
from safetensors.torch import load_file
from shapes import make_pictures
from transformers import AutoModelForImageTextToText

from bas_opd.algorithm import train_step
from bas_opd.data.images import open_image
from bas_opd.data.prepare import prepare
from bas_opd.errors import BasOpdError, DataError, ModelError, RunDirectoryError
from bas_opd.methods import bas_opd as bas_opd_method
from bas_opd.model.processing import Processor
from bas_opd.run import loop
from bas_opd.run.record_file import read_records
from bas_opd.select import query_budget
from bas_opd.teacher import SelfTeacher
from bas_opd.types import FEATURES, StepReport


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose crops are boxes; a few examples have none."""
    return make_pictures(tmp_path_factory.mktemp("data") / "boxes", n=16, seed=1).folder


@pytest.fixture(scope="module")
def crop_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose crops are pictures of their own, so that opening one can be seen."""
    home = tmp_path_factory.mktemp("crops")
    rows = []
    for i in range(12):
        Image.effect_noise((96, 64 + 32 * (i % 3)), 50).convert("RGB").save(home / f"{i}.png")
        Image.effect_noise((64, 64), 50).convert("RGB").save(home / f"crop-{i}.png")
        row = {"id": f"e{i}", "image": f"{i}.png", "question": "What?", "answer": "that"}
        rows.append(row | ({"crop": f"crop-{i}.png"} if i % 4 else {}))
    source = home / "rows.jsonl"
    source.write_text("\n".join(json.dumps(row) for row in rows))
    prepare(str(source), home / "set")
    return home / "set"


class Spy:
    """Watches the network and Pillow while the teacher scores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[StepReport] = []
        self.forwards: list[list[dict[str, Any]]] = []
        self.decoded: list[list[str]] = []
        self.decoded_outside: list[str] = []
        self._in_teacher = False
        score, load = SelfTeacher.score, ImageFile.ImageFile.load

        def watched_score(teacher: SelfTeacher, *args: Any) -> Any:
            self.forwards.append([])
            self.decoded.append([])
            network: Any = teacher.model.network
            handle = network.model.register_forward_pre_hook(self._forward, with_kwargs=True)
            self._in_teacher = True
            try:
                return score(teacher, *args)
            finally:
                self._in_teacher = False
                handle.remove()

        def watched_load(image: Any) -> Any:
            name = Path(str(getattr(image.fp, "name", ""))).name
            if image.fp is not None:
                (self.decoded[-1] if self._in_teacher else self.decoded_outside).append(name)
            return load(image)

        def watched_step(*args: Any) -> StepReport:
            self.reports.append(train_step(*args))
            return self.reports[-1]

        monkeypatch.setattr(SelfTeacher, "score", watched_score)
        monkeypatch.setattr(ImageFile.ImageFile, "load", watched_load)
        monkeypatch.setattr(bas_opd_method, "train_step", watched_step)

    def _forward(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert not args
        self.forwards[-1].append(kwargs)


def _limit(report: StepReport) -> int:
    assert report.queries is not None
    return report.queries.selection.limit


@pytest.mark.parametrize("policy", ["random", "entropy", "learned"])
def test_an_unselected_row_or_crop_never_reaches_the_teacher(
    policy: str,
    small_qwen35: Path,
    crop_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = Spy(monkeypatch)
    config = tiny(
        small_qwen35, crop_files, tmp_path / "run", f"select.policy={policy}", *SMALL_STEPS
    )
    loop.train(config, Silent())
    crop_names = {path.name for path in (crop_files / "crops").iterdir()}
    assert spy.decoded_outside
    assert not crop_names & set(spy.decoded_outside)
    processor = Processor.load(small_qwen35)
    assert len(spy.reports) == len(spy.forwards) == 4
    for report, forwards, decoded in zip(spy.reports, spy.forwards, spy.decoded, strict=True):
        rollouts, rows = report.rollouts, report.rows
        assert len(rows) == _limit(report) < len(rollouts.candidates())
        prompts = {rollouts.prompt_of(row) for row in rows}
        crops = [rollouts.examples[number].crop for number in prompts]

        # Pictures: the crops of the selected prompts, each once, and nothing else.
        assert sorted(decoded) == sorted(c.image.name for c in crops if c and c.image)

        # Prompts: as many as selected ones, and the pixels of their crops alone.
        prefills = [call for call in forwards if "pixel_values" in call]
        assert sum(len(call["input_ids"]) for call in prefills) == len(prompts)
        shown = torch.cat([call["pixel_values"] for call in prefills])
        views = [
            processor.encode(open_image(c.image), "?").pixel_values for c in crops if c and c.image
        ]
        assert sorted(shown.sum(-1).tolist()) == sorted(torch.cat(views).sum(-1).tolist())

        # Responses: those of the selected rows, each once.
        continued = [call["input_ids"] for call in forwards if "pixel_values" not in call]
        seen = [row.tolist() for call in continued for row in call]
        expected = [rollouts.tokens[row, : int(rollouts.lengths[row]) - 1].tolist() for row in rows]
        assert len(seen) == len(rows)
        for response in expected:
            match = next(s for s in seen if s[: len(response)] == response)
            seen.remove(match)


@pytest.mark.parametrize("policy", ["full", "random", "entropy", "learned"])
def test_the_records_prove_the_budget(
    policy: str, small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    ratio = "1" if policy == "full" else "0.3"
    config = tiny(
        small_qwen35,
        boxes,
        tmp_path / "run",
        f"select.policy={policy}",
        f"select.query_ratio={ratio}",
        *SMALL_STEPS,
    )
    summary = loop.train(config, Silent())
    opening, *steps, closing = read_records(summary.directory / "records.jsonl")
    assert opening["config"]["select"]["policy"] == policy
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    for step in steps:
        candidates = step["candidates"]
        assert step["query_ratio"] == ratio
        assert step["budget"] == query_budget(step["query_ratio"], len(candidates))
        assert len(step["selected"]) == len(set(step["selected"])) == step["budget"]
        assert set(step["selected"]) <= set(candidates)
        assert step["calls"] == len(step["scored"]) == step["budget"]
        assert step["overrun"] == 0
        lengths = step["response_tokens"]
        assert step["scored_tokens"] == sum(lengths[row] for row in step["selected"])
        assert len(step["features"]) == len(candidates)
        assert all(len(phi) == len(FEATURES) for phi in step["features"])
        assert all(utility is not None for utility in step["utility"])
        assert step["shown"][0]["response"] is not None
        assert {"rollout", "select", "teacher", "student", "ema", "learn"} == set(step["seconds"])
    totals = closing["totals"]
    assert totals["calls"] == sum(step["calls"] for step in steps)
    assert totals["scored_tokens"] == sum(step["scored_tokens"] for step in steps)
    assert totals == json.loads(json.dumps(summary.totals))


def test_the_tiny_config_selects_by_prediction_in_most_steps_and_trains(
    small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    summary = loop.train(tiny(small_qwen35, boxes, tmp_path / "run"), Silent())
    assert summary.totals["ranked_steps"] >= summary.totals["steps"] / 2
    assert summary.totals["skipped_steps"] == 0
    start = AutoModelForImageTextToText.from_pretrained(small_qwen35).state_dict()
    end = AutoModelForImageTextToText.from_pretrained(summary.model).state_dict()
    assert start.keys() == end.keys()
    assert any(not torch.equal(start[name], end[name]) for name in start)
    for name in ("processor_config.json", "chat_template.jinja", "tokenizer.json"):
        assert (summary.model / name).read_bytes() == (small_qwen35 / name).read_bytes()
    before, after = Processor.load(small_qwen35), Processor.load(summary.model)
    picture = Image.new("RGB", (70, 90))
    assert torch.equal(
        before.encode(picture, "Why?").input_ids, after.encode(picture, "Why?").input_ids
    )


def test_the_same_run_twice_is_the_same_run(
    small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    records = []
    for name in ("a", "b"):
        config = tiny(small_qwen35, boxes, tmp_path / name, *SMALL_STEPS)
        summary = loop.train(config, Silent())
        events = list(read_records(summary.directory / "records.jsonl"))[1:-1]
        records.append([{k: v for k, v in e.items() if k not in OWN} for e in events])
    assert records[0] == records[1]


def test_adapters_train_and_are_saved(small_qwen35: Path, boxes: Path, tmp_path: Path) -> None:
    config = tiny(small_qwen35, boxes, tmp_path / "run", "lora.rank=4", *SMALL_STEPS)
    summary = loop.train(config, Silent())
    adapter = load_file(summary.model / "adapter_model.safetensors")
    # peft starts B at zero: what is not zero has been trained.
    trained = [name for name, weight in adapter.items() if "lora_B" in name and weight.any()]
    assert trained
    assert not any("visual" in name for name in adapter)
    base = AutoModelForImageTextToText.from_pretrained(small_qwen35)
    restored = PeftModel.from_pretrained(base, str(summary.model)).state_dict()
    for name, weight in adapter.items():
        key = name.replace(".weight", ".default.weight")
        assert torch.equal(restored[key], weight)


def test_a_step_without_candidates_is_recorded_as_empty_and_the_run_continues(
    small_qwen35: Path, crop_files: Path, tmp_path: Path
) -> None:
    config = tiny(
        small_qwen35,
        crop_files,
        tmp_path / "run",
        "rollout.prompts_per_step=1",
        "rollout.max_response_tokens=4",
        "select.query_ratio=0.5",
        "run.steps=12",
    )
    summary = loop.train(config, Silent())
    steps = list(read_records(summary.directory / "records.jsonl"))[1:-1]
    empty = [step for step in steps if not step["candidates"]]
    assert len(empty) == summary.totals["empty_steps"] == 3
    assert all(not step["is_valid"] and step["loss"] == 0 for step in empty)
    assert summary.totals["steps"] == 12


def test_a_set_without_any_crop_is_refused_before_anything_is_written(
    small_qwen35: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    rows = [{"id": str(i), "image": "a.png", "question": "?"} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = tmp_path / "set"
    prepare(str(tmp_path / "rows.jsonl"), data)
    config = tiny(small_qwen35, data, tmp_path / "run", *SMALL_STEPS)
    with pytest.raises(DataError, match="None of the 4 examples"):
        loop.train(config, Silent())
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_missing_model_is_refused_before_anything_is_written(boxes: Path, tmp_path: Path) -> None:
    config = tiny(tmp_path / "nowhere", boxes, tmp_path / "run")
    with pytest.raises(ModelError, match="nowhere"):
        loop.train(config, Silent())
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_directory_that_holds_something_is_left_alone(
    small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    precious = tmp_path / "run" / "precious.txt"
    precious.write_text("do not lose me")
    with pytest.raises(RunDirectoryError, match=r"run\.output"):
        loop.train(tiny(small_qwen35, boxes, tmp_path / "run"), Silent())
    assert precious.read_text() == "do not lose me"


def test_a_prompt_too_long_is_refused_before_the_first_step(
    small_qwen35: Path, boxes: Path, tmp_path: Path
) -> None:
    config = tiny(small_qwen35, boxes, tmp_path / "run", "data.max_prompt_tokens=5")
    with pytest.raises(DataError, match=r"Example .*png.* tokens, more than the 5 allowed"):
        loop.train(config, Silent())
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_crop_the_model_cannot_read_is_refused_before_the_first_step(
    small_qwen35: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    row = {"id": "thin", "image": "a.png", "question": "?", "box": [0, 0, 600, 2]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    data = tmp_path / "set"
    prepare(str(tmp_path / "rows.jsonl"), data)
    config = tiny(small_qwen35, data, tmp_path / "run", "rollout.prompts_per_step=1")
    with pytest.raises(DataError, match=r"Example 'thin'.*600 x 2 pixels"):
        loop.train(config, Silent())
    assert not (tmp_path / "run" / "run.json").exists()


def test_steps_that_are_never_finite_end_in_a_sentence(
    small_qwen35: Path, boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: clip(*args) * float("nan"))
    config = tiny(small_qwen35, boxes, tmp_path / "run", *SMALL_STEPS, "run.max_bad_steps=2")
    with pytest.raises(BasOpdError, match="2 steps in a row"):
        loop.train(config, Silent())
    (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert (kept / "student.safetensors").exists()
    _, *steps = read_records(tmp_path / "run" / "records.jsonl")
    assert [step["is_valid"] for step in steps] == [False, False]
