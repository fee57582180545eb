"""A teacher that is another model and sees the full image, as the student does."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from run_fixtures import OFTEN, Silent, events_of, rewrite, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures, rewritten
from small_models import build_small_model
from teacher_server import TeacherServer

from bas_opd.audit.geometry import audit_geometry
from bas_opd.audit.scoring import audit_utility
from bas_opd.audit.subject import Request, Subject
from bas_opd.commands.plan import plan
from bas_opd.config import Config, config_hash, load_config, preset
from bas_opd.data.images import open_crop, open_image
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError, DataError, PreemptionError
from bas_opd.files import write_json
from bas_opd.model.processing import Processor
from bas_opd.run import loop
from bas_opd.run.forecast import check_data
from bas_opd.run.history import read_history
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import parse_step
from bas_opd.run.verify import verify
from bas_opd.types import Example

FULL = "teacher.view=full"
Make = Callable[..., Config]


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("larger"), hidden=128, seed=5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("data"), n=16, seed=1)


@pytest.fixture
def config(small_qwen35: Path, larger: Path, data: PreparedSet, tmp_path: Path) -> Make:
    """Settings of a run that the larger model teaches from the full image."""

    def make(name: str = "run", *overrides: str) -> Config:
        taught = (*OFTEN, f"teacher.path={larger}", FULL, *overrides)
        return tiny(small_qwen35, data.folder, tmp_path / name, *taught)

    return make


@pytest.fixture(scope="module")
def server(larger: Path) -> Iterator[TeacherServer]:
    with TeacherServer(larger).running() as running:
        yield running


@pytest.fixture
def served(
    small_qwen35: Path,
    data: PreparedSet,
    tmp_path: Path,
    server: TeacherServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    """Settings of a run that it teaches from behind a server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.requests, server.bytes = [], b""

    def make(name: str = "run", *overrides: str) -> Config:
        taught = (*OFTEN, "distill.k=20", *server.settings(), FULL, *overrides)
        return tiny(small_qwen35, data.folder, tmp_path / name, *taught)

    return make


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


def steps_of(run: Path) -> list[Any]:
    return read_history(run).steps


def problems(run: Path) -> list[str]:
    return [each for check in verify(run, draws=True).checks for each in check.problems]


def assert_every_row_could_be_asked(run: Path, data: PreparedSet) -> None:
    """K of all rows bounds the selection, and rows without a crop are selected too."""
    blind = {example.id for example in data.examples if not example.has_crop}
    asked: set[str] = set()
    for step in steps_of(run):
        assert step.candidates == list(range(step.rollouts))
        assert 0 < len(step.selected) < len(step.candidates)
        assert step.used <= step.budget
        asked |= {step.examples[row // step.per_prompt] for row in step.selected}
    assert asked & blind
    assert asked - blind
    assert problems(run) == []


def no_crop(example: Example) -> Image.Image:
    raise AssertionError(f"The crop of {example.id} was opened.")


def test_it_sees_the_students_own_prompt_and_every_row_can_be_asked_about(
    config: Make, data: PreparedSet, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bas_opd.data.views.open_crop", no_crop)
    run = train(config())
    assert_every_row_could_be_asked(run, data)
    # The student's own weights predict what the student does.
    same = ("run.steps=1", f"teacher.path={small_qwen35}")
    (step,) = steps_of(train(config("same", *same)))
    assert 0 <= step.loss < 1e-9 < 1e-3 < steps_of(run)[0].loss
    with monkeypatch.context() as patch:
        stop_at(patch, 14)
        with pytest.raises(PreemptionError):
            train(config("stopped"))
    assert_same_end(train(config("stopped")), run)
    with pytest.raises(ConfigError, match=r"teacher\.view: was full, is now crop"):
        train(config("stopped", "teacher.view=crop"))


def test_a_budget_in_processed_tokens_counts_its_full_prompts(
    config: Make, data: PreparedSet
) -> None:
    dear = ("select.budget=processed_tokens", "select.query_ratio=0.5")
    run = train(config("run", *dear))
    for step in steps_of(run):
        assert step.openings == step.prompt_tokens
    assert_every_row_could_be_asked(run, data)
    # This share of what all rows cost is less than one of these prompts.
    settings = config("other", *dear, "select.query_ratio=0.18")
    with pytest.raises(ConfigError, match="K pays for no query at any step"):
        train(settings)


def test_data_without_crops_are_learned_from(
    config: Make, data: PreparedSet, tmp_path: Path
) -> None:
    bare = f"data.path={rewritten(data.folder, tmp_path / 'bare', crop=None)}"
    run = train(config("run", bare, "run.steps=2"))
    assert all(step.loss > 1e-3 for step in steps_of(run))
    assert problems(run) == []
    with pytest.raises(DataError, match="has a crop, so the teacher could never be asked"):
        train(config("other", bare, "teacher.view=crop"))
    dear = ("select.budget=processed_tokens", "select.query_ratio=0.18")
    with pytest.raises(ConfigError, match="K pays for no query at any step"):
        train(config("other", bare, *dear))


def test_an_answer_without_a_crop_is_enough_for_correctness(
    config: Make, data: PreparedSet
) -> None:
    blank = replace(
        data,
        examples=tuple(replace(e, answer="" if e.has_crop else e.answer) for e in data.examples),
    )
    graded = ("select.policy=covering", "select.correctness=true")
    check_data(config("run", *graded), blank)
    with pytest.raises(DataError, match="no example with a crop in"):
        check_data(config("run", *graded, "teacher.view=crop"), blank)
    none = replace(data, examples=tuple(replace(e, answer="") for e in data.examples))
    with pytest.raises(DataError, match=r"but no example in .* has an answer"):
        check_data(config("run", *graded), none)


def test_a_server_is_sent_full_images_of_selected_rows_and_no_crop(
    served: Make, server: TeacherServer, data: PreparedSet
) -> None:
    run = train(served())
    assert_every_row_could_be_asked(run, data)
    processor = server.model.processor
    examples = {example.id: example for example in data.examples}
    asked = {
        step.examples[row // step.per_prompt] for step in steps_of(run) for row in step.selected
    }

    def pixels(picture: Image.Image) -> bytes:
        return processor.resized(picture).convert("RGB").tobytes()

    sent: set[tuple[bytes, str]] = set()
    for request in server.requests:
        (part,) = request["content_parts"]
        picture = Image.open(io.BytesIO(base64.b64decode(part["url"].partition(",")[2])))
        ids, full = request["token_ids"], pixels(picture)
        (question,) = {
            each.question
            for each in map(examples.__getitem__, asked)
            if ids[: len(prompt := processor.prompt_ids(each.question))] == list(prompt)
            and pixels(open_image(each.image)) == full
        }
        sent.add((full, question))
    shown = {(pixels(open_image(examples[e].image)), examples[e].question) for e in asked}
    assert sent == shown
    crops = {pixels(open_crop(each)) for each in data.examples if each.has_crop}
    assert not crops & {picture for picture, _ in sent}


def test_a_server_needs_room_for_full_images(
    served: Make,
    server: TeacherServer,
    data: PreparedSet,
    small_qwen35: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = Processor.load(small_qwen35).prompt_length
    longest = max(full((256, 192), example.question) for example in data.examples)
    settings = served()
    room = longest + settings.rollout.max_response_tokens + 1
    monkeypatch.setattr(server, "max_model_len", room - 1)
    with pytest.raises(ConfigError, match=f"reads at most {room - 1} tokens, but .* has {room}"):
        train(settings)


def totalled(run: Path, events: list[dict[str, Any]]) -> None:
    """Write records whose totals are those of their steps."""
    steps = [parse_step(event) for event in events if event["event"] == "step"]
    events[-1]["totals"] |= Ledger.of(steps).totals()
    rewrite(run, events)


def test_verify_recounts_what_a_server_reads_of_full_images(served: Make) -> None:
    run = train(served("run", "run.steps=2"))
    events = events_of(run)
    step = next(event for event in events if event["event"] == "step")
    step["processed_tokens"] -= 1
    step["total_tokens"] -= 1
    totalled(run, events)
    due = step["processed_tokens"] + 1
    assert f"step 0: processed_tokens is {due - 1}, but its rows make {due}." in problems(run)


def test_verify_names_candidates_that_are_not_of_the_view(config: Make, data: PreparedSet) -> None:
    run = train(config("run", "select.policy=random"))
    kept = events_of(run)
    without = events_of(run)
    step = next(event for event in without if event["event"] == "step")
    # A row that was not selected is said to have been no candidate; K stays as it was.
    row = next(row for row in step["candidates"][::-1] if row not in step["selected"])
    place = step["candidates"].index(row)
    for column in ("candidates", "features", "scores", "texts"):
        del step[column][place]
    rewrite(run, without)
    said = "step 0: candidates are not the rows that have a response."
    assert said in problems(run)
    # The run is said to be the paper's, wherever its settings are.
    settings = {**kept[0]["config"], "teacher": {**kept[0]["config"]["teacher"], "view": "crop"}}
    hashed = config_hash(Config.model_validate(settings))
    kept[0] |= {"config": settings, "config_hash": hashed}
    identity = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", {**identity, "config": settings, "config_hash": hashed})
    rewrite(run, kept)
    blind = {example.id for example in data.examples if not example.has_crop}
    wrong = [event for event in kept if blind & set(event.get("examples", ()))]
    said = "candidates are not the rows that have a crop and a response."
    assert wrong
    assert problems(run) == [f"step {event['step']}: {said}" for event in wrong]


def test_the_plan_counts_its_full_prompts(
    config: Make, served: Make, data: PreparedSet, small_qwen35: Path
) -> None:
    settings = ("run.steps=4", "select.policy=full", "select.query_ratio=1")
    here, there = plan(config("run", *settings)), plan(served("run", *settings))
    assert here.candidates == there.candidates == here.calls == 4 * 4 * 4
    processor = Processor.load(small_qwen35)
    full = {e.id: processor.prompt_length((256, 192), e.question) for e in data.examples}
    # Sixteen examples in four steps: each once.
    read = here.tokens.response
    assert here.tokens.teacher == sum(full.values()) + here.calls * (read - 1)
    assert there.tokens.teacher == 4 * sum(full.values()) + there.calls * (read + 1)
    of_crops = plan(config("run", *settings, "teacher.view=crop"))
    assert of_crops.candidates < here.candidates
    assert of_crops.tokens.teacher < here.tokens.teacher  # type: ignore[operator]
    dear = ("select.budget=processed_tokens", "select.query_ratio=0.5")
    assert (
        plan(config("run", *dear)).most_budget
        > plan(config("run", *dear, "teacher.view=crop")).most_budget
    )


def test_its_full_prompts_must_fit_as_its_own_processor_makes_them(
    config: Make, small_qwen35: Path, larger: Path, data: PreparedSet, tmp_path: Path
) -> None:
    student = tmp_path / "student"  # which sees pictures smaller than its teacher does
    shutil.copytree(small_qwen35, student)
    settings = json.loads((student / "processor_config.json").read_text())
    settings["image_processor"]["size"]["longest_edge"] = 64 * 64
    (student / "processor_config.json").write_text(json.dumps(settings))
    full = Processor.load(larger).prompt_length
    longest = max(full((256, 192), example.question) for example in data.examples)
    limits = (f"model.path={student}", f"data.max_prompt_tokens={longest - 1}", "run.steps=1")
    train(config("run", *limits, "teacher.view=crop"))
    # Found anew, where the same directory gets another run.
    with pytest.raises(DataError, match=f"Its prompt has {longest} tokens, more than"):
        loop.train(config("run", *limits), Silent(), overwrite=True)


def test_an_audit_asks_it_about_every_row_and_the_student_cannot_stand_in(
    config: Make, served: Make, data: PreparedSet
) -> None:
    run = train(config())
    subject = Subject(Request(run=run, batches=2, checkpoints=2, pairs=2))
    audit = audit_utility(subject, Silent())
    blind = {example.id for example in data.examples if not example.has_crop}
    assert {each.example for each in audit.candidates} & blind
    assert min(each.utility for each in audit.candidates) > 0
    pairs = [pair for each in audit_geometry(subject, Silent()).checkpoints for pair in each.pairs]
    assert {pair.selected + pair.unselected for pair in pairs} == {steps_of(run)[0].rollouts}
    with pytest.raises(DataError, match=r"teacher\.view=full.* every utility would be 0"):
        Subject(Request(run=run, teacher="student"))
    behind = train(served("behind", "run.steps=1"))
    with pytest.raises(ConfigError, match=r"Only `bas-opd train` asks it\.$"):
        _ = Subject(Request(run=behind)).method


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("learned25", (), "both would see the same image, and nothing would be learned"),
        ("learned25", ("teacher.mode=frozen",), "Set teacher.view=crop, or name another model"),
        ("opsd", ("teacher.path=t",), "method opsd does not use it; it belongs to bas-opd"),
        ("opsd", (), "teacher.view is full, but the method opsd does not use it"),
        ("sft", (), "teacher.view is full, but the method sft does not use it"),
        ("grpo", (), "teacher.view is full, but the method grpo does not use it"),
        ("learned25", ("teacher.path=t", "teacher.view=answer"), "'crop' or 'full' is expected"),
    ],
)
def test_where_no_other_model_teaches_the_paper_s_method_it_is_refused(
    name: str, settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(preset(name), ["model.path=m", "data.path=d", FULL, *settings])
