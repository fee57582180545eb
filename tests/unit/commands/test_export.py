"""An exported model is the student, whole and alone."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from PIL import Image
from run_fixtures import events_of, rewrite, small_run
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoTokenizer

from bas_opd.commands.export import export
from bas_opd.config.loading import dump
from bas_opd.config.schema import Config
from bas_opd.errors import CheckpointError, DataError, ModelError, RunDirectoryError
from bas_opd.model.processing import Processor
from bas_opd.serving.request_journal import RequestJournal


@pytest.fixture(scope="module")
def full(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("full"), small_qwen35, "run.steps=3")


@pytest.fixture(scope="module")
def lora(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ("run.steps=3", "lora.rank=4", "optim.learning_rate=0.05")
    return small_run(tmp_path_factory.mktemp("lora"), small_qwen35, *settings)


def load(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")


def same_prompt_logits(folder: Path, *models: Any) -> list[Tensor]:
    """The logits of several models on one prompt, pixels included."""
    processor = Processor.load(folder)
    prompt = processor.encode(Image.linear_gradient("L").resize((96, 64)).convert("RGB"), "Why?")
    ids = prompt.input_ids[None]
    with torch.no_grad():
        return [
            model.eval()(
                input_ids=ids,
                mm_token_type_ids=processor.mm_token_type_ids(ids),
                pixel_values=prompt.pixel_values,
                image_grid_thw=prompt.grid,
            ).logits
            for model in models
        ]


def unfinished(run: Path, target: Path) -> Path:
    """A copy of a run as a kill after its last checkpoint would leave it."""
    copy = Path(shutil.copytree(run, target))
    rewrite(copy, events_of(copy)[:-1])
    shutil.rmtree(copy / "model")
    return copy


def test_the_exported_model_gives_the_logits_of_the_trained_one(
    full: Path, small_qwen35: Path, tmp_path: Path
) -> None:
    done = export(full, tmp_path / "out")
    assert (done.step, done.is_final) == (3, True)
    ours, trained, base = same_prompt_logits(
        tmp_path / "out", load(tmp_path / "out"), load(full / "model"), load(small_qwen35)
    )
    assert torch.equal(ours, trained)
    assert not torch.equal(ours, base)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer("Where is it?")["input_ids"]) == "Where is it?"


def test_adapters_are_merged(lora: Path, small_qwen35: Path, tmp_path: Path) -> None:
    export(lora, tmp_path / "out")
    adapted = PeftModel.from_pretrained(load(small_qwen35), str(lora / "model"))
    ours, trained, base = same_prompt_logits(
        tmp_path / "out", load(tmp_path / "out"), adapted, load(small_qwen35)
    )
    # Either of the two is 4e-5 away from its own logits in float64; the adapters moved them by 7.
    torch.testing.assert_close(ours, trained, rtol=0, atol=1e-4)
    assert (ours - base).abs().max() > 1


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_run_that_has_not_finished_gives_its_newest_intact_checkpoint(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    finished: Path = request.getfixturevalue(kind)
    run = unfinished(finished, tmp_path / "run")
    done = export(run, tmp_path / "last")
    assert (done.step, done.is_final) == (3, False)
    export(finished, tmp_path / "final")
    last, final = (load_file(tmp_path / n / "model.safetensors") for n in ("last", "final"))
    assert last.keys() == final.keys()
    assert all(torch.equal(last[name], final[name]) for name in final)

    (run / "checkpoints" / "step-00000003" / "student.safetensors").write_bytes(b"damaged")
    warnings: list[str] = []
    assert export(run, tmp_path / "older", warn=warnings.append).step == 2
    assert "student.safetensors" in warnings[0]
    assert "steps | 2 of 3 |" in (tmp_path / "older" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_nothing_but_the_model_is_inside(
    kind: str, small_qwen35: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    export(request.getfixturevalue(kind), tmp_path / "out")
    base = {path.name for path in small_qwen35.iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == base | {"README.md"}
    ours, theirs = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "out", small_qwen35)
    )
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_bfloat16_halves_the_file_and_is_what_loads(full: Path, tmp_path: Path) -> None:
    export(full, tmp_path / "out", dtype="bfloat16")
    assert load(tmp_path / "out").dtype is torch.bfloat16
    exact, rounded = (
        load_file(folder / "model.safetensors") for folder in (full / "model", tmp_path / "out")
    )
    assert all(torch.equal(exact[name].bfloat16(), rounded[name]) for name in exact)


def test_the_card_says_what_was_trained_and_asked(full: Path, tmp_path: Path) -> None:
    export(full, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    events = events_of(full)
    totals = events[-1]["totals"]
    assert card.startswith("---\nlibrary_name: transformers\n")
    for fact in (
        f"{totals['calls']:,} of {totals['candidates']:,} candidates",
        f"{totals['scored_tokens']:,} of {totals['candidate_tokens']:,}",
        f"| teacher processed tokens | {totals['processed_tokens']:,}, prompts included |",
        events[0]["data"]["fingerprint"],
        "| selection policy | learned |",
        "| budget | 0.25 of the candidates",
    ):
        assert fact in card
    code = card.partition("```python\n")[2].partition("```")[0]
    compile(code, "README.md", "exec")
    # The folder of the base model on this machine is nobody else's business.
    assert str(tmp_path.parent) not in card
    assert "base_model" not in card


def card_with(run: Path, folder: Path, sections: dict[str, dict[str, Any]]) -> str:
    """The card of a run that has other settings on record."""
    copy = Path(shutil.copytree(run, folder / "run"))
    events = events_of(copy)
    kept = {name: events[0]["config"][name] for name in ("model", "data", "run")}
    events[0]["config"] = dump(Config.model_validate({**kept, **sections}))
    rewrite(copy, events)
    export(copy, folder / "out")
    return (folder / "out" / "README.md").read_text()


PATH = {"path": "/home/someone/models/big"}
SERVER = {"server": "http://10.0.0.7:8000/v1", "model": "Qwen/Qwen3.5-9B"}
SELECTIVE = "Trained by budget-aware selective on-policy"
ITSELF = "a teacher that saw a crop scored a share of the model's own answers"
OPSD = "Trained by on-policy self-distillation from a teacher that was told the answers."


@pytest.mark.parametrize(
    ("sections", "title", "opening", "teacher"),
    [
        pytest.param(
            {"teacher": {"mode": mode}},
            "distilled from its own view of the crop",
            f"{SELECTIVE} self-distillation: {ITSELF} to the full image.",
            whose,
            id=mode,
        )
        for mode, whose in (
            ("ema", "a moving average of the model"),
            ("frozen", "the initial model"),
            ("live", "the model itself"),
        )
    ]
    + [
        pytest.param(
            {"select": {"policy": "full", "query_ratio": "1"}},
            "distilled from its own view of the crop",
            "Trained by on-policy self-distillation: a teacher that saw a crop scored the model's "
            "own answers to the full image.",
            "a moving average of the model",
            id="every-answer",
        ),
        pytest.param(
            {"teacher": PATH},
            "distilled from big",
            f"{SELECTIVE} distillation: another model, big, that saw a crop scored a share of the "
            "model's own answers to the full image.",
            "big",
            id="path",
        ),
        pytest.param(
            {"teacher": {**PATH, "path": "Qwen/Qwen3.5-9B", "view": "full"}},
            "distilled from Qwen/Qwen3.5-9B",
            f"{SELECTIVE} distillation: another model, Qwen/Qwen3.5-9B, that saw the full image "
            "too scored a share of the model's own answers to the full image.",
            "Qwen/Qwen3.5-9B",
            id="path-full-view",
        ),
        pytest.param(
            {"teacher": SERVER},
            "distilled from Qwen/Qwen3.5-9B",
            f"{SELECTIVE} distillation: another model, Qwen/Qwen3.5-9B, that saw a crop scored a "
            "share of the model's own answers to the full image.",
            "Qwen/Qwen3.5-9B, behind a server",
            id="server",
        ),
        pytest.param(
            {"teacher": {**SERVER, "model": "/models/private/big", "view": "full"}},
            "distilled from big",
            f"{SELECTIVE} distillation: another model, big, that saw the full image too scored a "
            "share of the model's own answers to the full image.",
            "big, behind a server",
            id="server-full-view",
        ),
        pytest.param(
            {"method": {"name": "opsd"}},
            "trained by opsd",
            OPSD,
            "a moving average of the model",
            id="opsd",
        ),
        pytest.param(
            {"method": {"name": "opsd"}, "teacher": {"mode": "frozen"}},
            "trained by opsd",
            OPSD,
            "the initial model",
            id="opsd-frozen",
        ),
        pytest.param(
            {"method": {"name": "opsd"}, "teacher": {"path": "./big"}},
            "trained by opsd",
            "Trained by on-policy distillation from another model, big, that was told the answers.",
            "big",
            id="opsd-path",
        ),
        pytest.param(
            {"method": {"name": "sft"}},
            "trained by sft",
            "Trained by fine-tuning on answers that the initial model gave to crops.",
            "the initial model",
            id="sft",
        ),
        pytest.param(
            {"method": {"name": "grpo"}},
            "trained by grpo",
            "Trained by GRPO, rewarded by rule for right answers to the full image.",
            None,
            id="grpo",
        ),
        pytest.param(
            {"method": {"name": "dapo"}, "judge": {"url": "http://10.0.0.7/v1", "model": "m"}},
            "trained by dapo",
            "Trained by DAPO, rewarded by rule or by a judge for right answers to the full image.",
            None,
            id="judged",
        ),
    ],
)
def test_the_card_says_who_taught_and_what_it_saw(
    sections: dict[str, dict[str, Any]],
    title: str,
    opening: str,
    teacher: str | None,
    full: Path,
    tmp_path: Path,
) -> None:
    card = card_with(full, tmp_path, sections)
    prose = card.partition("\n# ")[2].partition("\n| |")[0]
    assert prose.partition("\n")[0].endswith(f", {title}")
    assert opening in " ".join(prose.split())
    rows = [line for line in card.splitlines() if line.startswith("| teacher |")]
    assert rows == ([] if teacher is None else [f"| teacher | {teacher} |"])
    # A card is public: it names no folder and no address of its writer.
    for secret in ("someone", "/models", "private", "10.0.0.7", str(tmp_path)):
        assert secret not in card


def test_the_card_counts_requests_to_a_server_apart_from_calls(full: Path, tmp_path: Path) -> None:
    assert "requests to the teacher" not in card_with(full, tmp_path / "none", {"teacher": SERVER})
    run = Path(shutil.copytree(full, tmp_path / "served"))
    journal = RequestJournal.resume(run / "teacher" / "requests.jsonl")
    for row in range(3):
        journal.write(0, row, "content", 700)
    journal.write(1, 0, "content", 0)  # Its answer was stored already.
    card = card_with(run, tmp_path, {"teacher": SERVER})
    said = "3 in the whole run, repeats included; 2,100 tokens"
    assert f"| requests to the teacher | {said} |" in card
    totals = events_of(full)[-1]["totals"]
    assert f"| teacher calls | {totals['calls']:,} of " in card


@pytest.mark.parametrize("settings", [(), ("model.max_pixels=16384", "model.min_pixels=1024")])
def test_the_code_of_the_card_runs_and_asks_as_in_training(
    small_qwen35: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run = small_run(tmp_path, small_qwen35, "run.steps=1", *settings)
    export(run, tmp_path / "out")
    Image.linear_gradient("L").resize((400, 300)).save(tmp_path / "a.png")
    code = (tmp_path / "out" / "README.md").read_text().partition("```python\n")[2]
    code = code.partition("```")[0].replace("FOLDER", str(tmp_path / "out"))
    code = code.replace("IMAGE", str(tmp_path / "a.png")).replace("QUESTION", "Which colour?")
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    limits: dict[str, Any] = {"max_pixels": 16384, "min_pixels": 1024} if settings else {}
    processor = Processor.load(small_qwen35, **limits)
    picture = Image.open(tmp_path / "a.png").convert("RGB")
    prompt = processor.encode(picture, "Which colour?")
    assert torch.equal(names["inputs"]["input_ids"][0], prompt.input_ids)
    assert torch.equal(names["picture"]["pixel_values"], prompt.pixel_values)
    assert names["output"].shape[1] > len(prompt.input_ids)
    # It imports nothing but what any user of transformers has.
    assert "bas_opd" not in code
    assert "torchvision" not in code


def test_a_hub_id_is_named_on_top_of_the_card(
    full: Path, small_qwen35: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(full, tmp_path / "run"))
    events = events_of(run)
    events[0]["config"]["model"]["path"] = "Qwen/Qwen3.5-4B"
    rewrite(run, events)
    export(run, tmp_path / "out", base=str(small_qwen35))
    assert '\nbase_model: "Qwen/Qwen3.5-4B"\n---\n' in (tmp_path / "out" / "README.md").read_text()


def test_a_finished_run_needs_its_base_model_only_for_adapters(
    full: Path, lora: Path, small_qwen35: Path, tmp_path: Path
) -> None:
    for name, run in (("full", full), ("lora", lora)):
        copy = Path(shutil.copytree(run, tmp_path / name))
        events = events_of(copy)
        events[0]["config"]["model"]["path"] = str(tmp_path / "gone")
        rewrite(copy, events)
    export(tmp_path / "full", tmp_path / "out-full")
    with pytest.raises(ModelError, match="gone"):
        export(tmp_path / "lora", tmp_path / "out-lora")
    assert not (tmp_path / "out-lora").exists()
    export(tmp_path / "lora", tmp_path / "out-lora", base=str(small_qwen35))


def test_another_model_than_the_one_trained_from_is_refused_as_base(
    full: Path, lora: Path, small_qwen35: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(small_qwen35, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    save_file(
        {name: value + 0.5 for name, value in weights.items()},
        other / "model.safetensors",
        {"format": "pt"},
    )
    for run in (full, lora, unfinished(full, tmp_path / "unfinished")):
        with pytest.raises(ModelError, match=r"is not the one that the run started from.*--base"):
            export(run, tmp_path / "out", base=str(other))
        assert not (tmp_path / "out").exists()


def test_what_exists_is_not_overwritten(full: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(RunDirectoryError, match="will be overwritten"):
        export(full, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "keep"


def test_a_model_that_changed_after_training_is_refused(full: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(full, tmp_path / "run"))
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps({**config, "more": 1}))
    with pytest.raises(CheckpointError, match=r"config\.json has changed"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_anything_to_export_says_so(full: Path, tmp_path: Path) -> None:
    run = unfinished(full, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="nothing to export"):
        export(run, tmp_path / "out")
    with pytest.raises(DataError, match="There is no run"):
        export(tmp_path / "nowhere", tmp_path / "out")
