"""The trained student as a plain transformers folder with a model card.

Teacher, selector, crops and optimizer state stay in the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

import bas_opd
from bas_opd import disk
from bas_opd.config.schema import Config, SelectConfig
from bas_opd.errors import CheckpointError, RunDirectoryError
from bas_opd.files import staged_folder
from bas_opd.model.base import model_folder
from bas_opd.model.loading import LoraSettings, open_model
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import StudentWeights
from bas_opd.run.checkpoint import newest_intact, read_checkpoint
from bas_opd.run.directory import Identity
from bas_opd.run.history import read_outline
from bas_opd.run.manifest import published, step_of, verify_files
from bas_opd.run.state import check_base
from bas_opd.serving.request_journal import RequestJournal, read_requests

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written, and which step of the run it is."""

    folder: str
    step: int
    is_final: bool
    dtype: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The student of a run at one step, with what its card says about it."""

    config: Config
    identity: Identity
    fingerprint: str
    step: int
    planned: int
    ledger: Mapping[str, Any]
    requests: RequestJournal | None
    """Those to a served teacher, of the whole run."""
    weights: Mapping[str, Tensor] | None
    """Trained parameters of a checkpoint; none where the run has saved its final model."""

    @property
    def is_final(self) -> bool:
        return self.weights is None


def export(
    run: Path,
    out: Path,
    *,
    dtype: Precision = "float32",
    base: str | None = None,
    step: int | None = None,
    name: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the student of a run to a new folder, complete or not at all, adapters merged.

    A finished run gives its final model, any other its newest intact checkpoint; `step` names
    another checkpoint. `base` is the current path of the model that training started from, if it
    has moved. `name` is what the code of the card loads, such as a hub id.
    """
    if out.exists() or out.is_symlink():
        raise RunDirectoryError(
            f"{out} exists, and nothing in it will be overwritten. Choose another folder."
        )
    source = _find(run, step, warn)
    if base is not None and source.weights is None and not source.config.lora.rank:
        _started_from(source, base)  # A full final model does not need it, but the user named it.
    student = _student(source, run / "model", base or source.config.model.path)
    with staged_folder(out) as staging:
        student.network.to(getattr(torch, dtype))
        student.save(staging)
        card = _card(source, dtype, use=_use(source.config, student.processor, name))
        disk.write_file(staging / "README.md", card)
    return Exported(folder=str(out), step=source.step, is_final=source.is_final, dtype=dtype)


def _find(run: Path, step: int | None, warn: Callable[[str], None]) -> _Source:
    history = read_outline(run)
    directory, finished = history.directory, history.finished
    source = partial(
        _Source,
        config=history.config(),
        identity=directory.read_identity(),
        fingerprint=history.opening().data.fingerprint,
        requests=read_requests(directory.requests),
    )
    if finished is not None and step in (None, finished.steps):
        verify_files(directory.model, finished.model)
        steps = finished.steps
        return source(step=steps, planned=steps, ledger=finished.totals, weights=None)
    if step is not None:
        steps = {step_of(path): path for path in published(directory.checkpoints)}
        if step not in steps:
            raise CheckpointError(
                f"The run in {run} has no checkpoint of step {step}. It has those of "
                f"{', '.join(map(str, sorted(steps))) or 'none'}."
            )
        snapshot = read_checkpoint(steps[step])
    else:
        snapshot = next(newest_intact(directory.checkpoints, warn), None)
    if snapshot is None:
        raise CheckpointError(
            f"The run in {run} has neither finished nor left an intact checkpoint, so there is "
            "nothing to export. Run its command again."
        )
    return source(
        step=snapshot.step,
        planned=history.planned or snapshot.step,
        ledger=snapshot.data["ledger"],
        weights=snapshot.tensors["student"],
    )


def _student(source: _Source, final: Path, base: str) -> VisionLanguageModel:
    """Return the student with its adapters, if any, merged into it.

    A full final model has its own tokenizer and image settings, so the base need not be there.
    """
    settings = source.config.lora
    if source.weights is None:
        if not settings.rank:
            return open_model(final, device="cpu")
        _started_from(source, base)
        return open_model(base, device="cpu", adapter=final)
    student = _started_from(source, base)
    try:
        StudentWeights(student).load_state_dict(source.weights)
    except CheckpointError as error:
        raise CheckpointError(
            f"The checkpoint of step {source.step} does not fit the model at {base}. Give the "
            "model that training began with as --base."
        ) from error
    if settings.rank:
        student.network = cast("Any", student.network).merge_and_unload()
    return student


def _started_from(source: _Source, base: str) -> VisionLanguageModel:
    """Return the model that training started from, with new adapters; any other is refused."""
    lora = None
    if source.config.lora.rank:
        lora = LoraSettings(**source.config.lora.model_dump(), seed=source.config.run.seed)
    student = known = open_model(base, device="cpu", lora=lora)
    if lora and source.identity.precision == "bfloat16" and not source.identity.base_files:
        # An old run is known by a sample of its weights, and it held frozen ones in bf16 then.
        known = open_model(base, device="cpu", lora=lora, precision="bfloat16")
    check_base(source.identity, base, known)
    return student


USE = """\
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

model = AutoModelForImageTextToText.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
images = AutoImageProcessor.from_pretrained("FOLDER", backend="pil"{pixels})

content = [{{"type": "image"}}, {{"type": "text", "text": "QUESTION"}}]
text = tokenizer.apply_chat_template(
    [{{"role": "user", "content": content}}], tokenize=False, add_generation_prompt=True{thinking}
)
picture = images(images=Image.open("IMAGE").convert("RGB"), return_tensors="pt")
patches = int(picture["image_grid_thw"].prod()) // images.merge_size**2
inputs = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * patches), return_tensors="pt")
inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).long()
output = model.generate(**inputs, **picture, max_new_tokens={limit}, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""
"""Needs neither this package nor torchvision, which a processor of transformers would."""


def _use(config: Config, processor: Processor, name: str | None) -> str:
    # The prompt must be the one of training; a template that does not know of thinking warns.
    knows = "enable_thinking" in processor.template
    return USE.replace("FOLDER", name or "FOLDER").format(
        thinking=f", enable_thinking={config.model.thinking}" if knows else "",
        limit=config.rollout.max_response_tokens,
        pixels="".join(
            f", {name}={value}"
            for name in ("min_pixels", "max_pixels")
            if (value := getattr(config.model, name)) is not None
        ),
    )


def _named(model: str) -> tuple[str, bool]:
    """Return what the card calls a model, and whether that is a hub id.

    Of a folder it is the last part: the others say where it lies on this machine.
    """
    path = Path(model_folder(model))
    is_named = len(path.parts) <= 2 and not model.startswith((".", "~", "/"))
    is_hub_id = is_named and not path.is_dir()
    return model if is_hub_id else path.name, is_hub_id


def _opening(name: str, config: Config) -> str:
    """Return the title of the card, and how the model was trained."""
    teacher = config.teacher
    kind, who, source = "self-distillation", "a teacher", "its own view of the crop"
    if teacher.is_another_model:
        source = _named(teacher.path or teacher.model)[0]
        kind, who = "distillation", f"another model, {source},"
    if config.method.name == "bas-opd":
        seen = "a crop" if teacher.view == "crop" else "the full image too"
        way, part = "budget-aware selective on-policy", "a share of the"
        if config.select.policy == "full":
            way, part = "on-policy", "the"
        return f"""\
# {name}, distilled from {source}

Trained by {way} {kind}: {who} that saw {seen} scored {part}
model's own answers to the full image."""
    graded = "by rule or by a judge" if config.judge.url else "by rule"
    told = {
        "sft": "fine-tuning on answers that the initial model gave to crops",
        "grpo": f"GRPO, rewarded {graded} for right answers to the full image",
        "dapo": f"DAPO, rewarded {graded} for right answers to the full image",
        "opsd": f"on-policy {kind} from {who} that was told the answers",
    }[config.method.name]
    return f"# {name}, trained by {config.method.name}\n\nTrained by {told}."


OWN_TEACHER = {
    "ema": "a moving average of the model",
    "frozen": "the initial model",
    "live": "the model itself",
}
"""`teacher.mode` -> whose weights taught, where no other model did."""


def _teacher_facts(source: _Source) -> dict[str, str]:
    config, requests = source.config, source.requests
    teacher = config.teacher
    if config.queries is None:
        return {"teacher": "the initial model"} if config.method.name == "sft" else {}
    if not teacher.is_another_model:
        return {"teacher": OWN_TEACHER[teacher.mode]}
    name, _ = _named(teacher.path or teacher.model)
    if teacher.server is None:
        return {"teacher": name}
    facts = {"teacher": f"{name}, behind a server"}
    if requests is not None:
        sent = f"{requests.requests.total():,} in the whole run, repeats included"
        facts["requests to the teacher"] = f"{sent}; {requests.tokens:,} tokens"
    return facts


def _query_facts(select: SelectConfig, ledger: Mapping[str, Any]) -> dict[str, str]:
    kind = select.budget.replace("_", " ")
    counted = "candidates" if kind == "calls" else f"{kind} of full querying"
    return {
        "selection policy": select.policy,
        "budget": f"{select.query_ratio} of the {counted} of each step",
        "teacher calls": f"{ledger['calls']:,} of {ledger['candidates']:,} candidates",
        "teacher scored tokens": f"{ledger['scored_tokens']:,} of {ledger['candidate_tokens']:,}",
        "teacher processed tokens": f"{ledger['processed_tokens']:,}, prompts included",
        f"{kind} over budget": f"{ledger['overrun']:,}",
    }


def _reward_facts(ledger: Mapping[str, Any]) -> dict[str, str]:
    return {
        "rollouts": f"{ledger['rollouts']:,}",
        "responses generated by the teacher": f"{ledger['generated']:,}",
        "responses graded": f"{ledger['rewards']:,}, {ledger['deferred']:,} not readable by rule",
        "optimizer updates": f"{ledger['updates']:,}",
    }


def _card(source: _Source, dtype: Precision, *, use: str) -> str:
    config, ledger = source.config, source.ledger
    name, is_hub_id = _named(config.model.path)
    front = ["library_name: transformers", "pipeline_tag: image-text-to-text"]
    front += [f"base_model: {json.dumps(name)}"] if is_hub_id else []
    moment = f"{source.step}" if source.is_final else f"{source.step} of {source.planned}"
    training = f"LoRA rank {config.lora.rank}, merged" if config.lora.rank else "all parameters"
    facts = {
        "method": config.method.name,
        "base model": f"{name}, whose license applies",
        "steps": moment,
        "trained": f"{training}; saved in {dtype}",
        **_teacher_facts(source),
        **(_query_facts(config.queries, ledger) if config.queries else _reward_facts(ledger)),
        "dataset fingerprint": f"`{source.fingerprint}`",
        "made with": f"bas-opd {bas_opd.__version__}",
    }
    if config.model.max_pixels or config.model.min_pixels:
        limits = (config.model.min_pixels or "default", config.model.max_pixels or "default")
        facts["pixels of a picture in training"] = "{} to {}".format(*limits)
    rows = "\n".join(f"| {fact} | {value} |" for fact, value in facts.items())
    return f"""\
---
{chr(10).join(front)}
---
{_opening(name, config)} Using it needs the full image alone; there is no
crop, no selector and no teacher in it.

| | |
|---|---|
{rows}

```python
{use}```
"""
