"""A teacher behind a server: within its budget, checked, and never asked twice for one answer."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from baseline_fixtures import short_config
from PIL import Image
from run_fixtures import OFTEN, Silent, events_of, rewrite, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures
from small_models import build_small_model
from teacher_server import TeacherServer, no_fault
from tokenizers import Tokenizer

from bas_opd.config import Config, load_config, preset
from bas_opd.data.images import open_crop, open_image
from bas_opd.data.records import PreparedSet
from bas_opd.data.views import answered, crop_size
from bas_opd.errors import ConfigError, ModelError, PreemptionError
from bas_opd.report.costs import token_parts
from bas_opd.report.run import read_and_verify
from bas_opd.rollout.sampler import Sampler
from bas_opd.run import loop
from bas_opd.run.checkpoint import published
from bas_opd.run.forecast import planned_steps
from bas_opd.run.history import read_history
from bas_opd.run.served import check_spending
from bas_opd.run.verify import verify
from bas_opd.serving.client import AccessError, RefusedError, ServerError, SpendingLimitError
from bas_opd.serving.request_journal import RequestJournal, read_requests, without_retries
from bas_opd.serving.scoring import AnswerError, probe_text
from bas_opd.teacher.server_teacher import Limits
from bas_opd.types import PromptBatch, Rollouts

SETTINGS = (*OFTEN, "distill.k=20", "teacher.at_once=2", "teacher.retries=2")
PRICE = "teacher.price_per_million_tokens=1000"
Make = Callable[..., Config]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without long waits."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("random.uniform", lambda *_: 0.001)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("larger"), hidden=128, seed=5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("data"), n=16, seed=1)


@pytest.fixture(scope="module")
def kept(larger: Path) -> Iterator[TeacherServer]:
    with TeacherServer(larger).running() as server:
        yield server


@pytest.fixture
def server(kept: TeacherServer) -> TeacherServer:
    kept.fault, kept.max_logprobs, kept.max_model_len, kept.version = (
        no_fault,
        10_000,
        4096,
        "0.32.0",
    )
    kept.chooses = True
    kept.requests, kept.bytes, kept.headers = [], b"", []
    kept.answered.clear()
    return kept


@pytest.fixture
def config(small_qwen35: Path, data: PreparedSet, tmp_path: Path, server: TeacherServer) -> Make:
    def make(name: str = "run", *overrides: str) -> Config:
        settings = (*SETTINGS, *server.settings(*overrides))
        return tiny(small_qwen35, data.folder, tmp_path / name, *settings)

    return make


@pytest.fixture(scope="module")
def whole(
    small_qwen35: Path, data: PreparedSet, kept: TeacherServer, tmp_path_factory: Any
) -> Path:
    """A run that nothing disturbed."""
    output = tmp_path_factory.mktemp("whole") / "run"
    kept.fault, kept.max_logprobs, kept.chooses = no_fault, 10_000, True
    settings = tiny(small_qwen35, data.folder, output, *SETTINGS, *kept.settings())
    return loop.train(settings, Silent()).directory


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run that comes so far as to load its model."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("The model was loaded.")

    monkeypatch.setattr(loop, "build_method", load)


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


def sent(run: Path) -> int:
    journal = read_requests(run / "teacher" / "requests.jsonl")
    assert journal is not None
    return journal.requests.total()


def steps_of(run: Path) -> Any:
    return read_history(run).steps


def selected_rows(run: Path) -> int:
    return sum(len(step.selected) for step in read_history(run).steps)  # type: ignore[attr-defined]


def test_with_every_log_prob_it_teaches_as_the_same_model_in_this_process(
    config: Make, small_qwen35: Path, larger: Path, data: PreparedSet, tmp_path: Path
) -> None:
    served = read_history(train(config("run", "distill.k=400"))).steps
    same = (*OFTEN, "distill.k=400", f"teacher.path={larger}")
    local = read_history(train(tiny(small_qwen35, data.folder, tmp_path / "local", *same))).steps
    for one, other in zip(served, local, strict=True):
        assert one.selected == other.selected  # type: ignore[attr-defined]
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-2)
        assert one.utility == pytest.approx(other.utility, rel=1e-2)  # type: ignore[attr-defined]


def test_at_the_students_likeliest_tokens_it_teaches_as_the_same_model_in_this_process(
    config: Make, small_qwen35: Path, larger: Path, data: PreparedSet, tmp_path: Path
) -> None:
    served = train(config())
    same = (*OFTEN, "distill.k=20", f"teacher.path={larger}")
    local = train(tiny(small_qwen35, data.folder, tmp_path / "local", *same))
    for one, other in zip(steps_of(served), steps_of(local), strict=True):
        assert one.support == "student"
        assert one.selected == other.selected
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)
        assert one.utility == pytest.approx(other.utility, rel=1e-4)


def test_what_the_student_computes_for_it_is_counted(config: Make, whole: Path) -> None:
    for step in steps_of(whole):
        # One pass over the selected rows, as large as the one that learns from them.
        assert step.rescored_tokens == step.student_tokens > 0
        costs = step.prefilled_tokens + step.sampled_tokens + step.processed_tokens
        assert step.total_tokens == costs + 4 * step.student_tokens
    found, _ = read_and_verify(whole)
    parts = {name: tokens for name, tokens, _, _ in token_parts(found)}
    rescored = sum(step.rescored_tokens for step in steps_of(whole))
    assert parts["the student before its updates"] == f"{rescored:,}"
    run = train(config())
    for name, value in (("rescored_tokens", 1), ("support", "teacher")):
        events = events_of(run)
        kept = [dict(event) for event in events]
        next(event for event in events if event.get("support"))[name] = value
        rewrite(run, events)
        assert not verify(run).is_sound
        rewrite(run, kept)
    assert verify(run).is_sound


@pytest.mark.parametrize("reason", ["old runner", "old version", "setting"])
def test_a_server_that_scores_no_chosen_ids_is_compared_at_its_own_likeliest(
    reason: str, config: Make, server: TeacherServer
) -> None:
    server.chooses = reason != "old runner"
    server.version = "0.31.0" if reason == "old version" else "0.32.0"
    run = train(config("run", *(["teacher.support=teacher"] if reason == "setting" else [])))
    assert {step.support for step in steps_of(run)} == {"teacher"}
    assert not any(step.rescored_tokens for step in steps_of(run))
    assert all(
        "prompt_logprob_token_ids" not in each["sampling_params"] for each in server.requests
    )
    assert verify(run, draws=True).is_sound


def test_a_server_that_changes_what_it_can_do_is_asked_anew_and_it_is_on_record(
    config: Make, server: TeacherServer
) -> None:
    train(config("run", "run.steps=1"))
    console = Silent()
    run = loop.train(config("run", "run.steps=2"), console).directory
    assert not any("is now compared" in each for each in console.messages)
    assert not verify(run).remarks
    server.chooses = False
    loop.train(config(), console)
    (change,) = [each for each in console.messages if "is now compared" in each]
    assert "likeliest tokens of the teacher, up to step 1 at those of the student" in change
    assert [step.support for step in steps_of(run)] == ["student", "student", "teacher", "teacher"]
    assert verify(run).is_sound
    (remark,) = verify(run).remarks
    assert "From step 2 on, the teacher was compared at the likeliest tokens of the teacher" in (
        remark
    )


def test_a_server_that_changes_after_its_check_stops_the_run_instead_of_its_meaning(
    config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = loop.build_method

    def later(*given: Any, **options: Any) -> Any:
        server.chooses = False
        return build(*given, **options)

    monkeypatch.setattr(loop, "build_method", later)
    with pytest.raises(RefusedError, match="requires the V2 model runner"):
        train(config())
    assert not steps_of(Path(config().run.output or ""))


def test_a_step_that_was_compared_otherwise_than_the_settings_say_is_found(
    config: Make,
) -> None:
    run = train(config("run", "teacher.support=teacher", "run.steps=1"))
    assert verify(run).is_sound
    events = events_of(run)
    (step,) = [event for event in events if event.get("support")]
    step["support"], step["rescored_tokens"] = "student", step["student_tokens"]
    step["total_tokens"] += step["student_tokens"]
    rewrite(run, events)
    problems = [each for check in verify(run).checks for each in check.problems]
    assert "step 0: support is student, but teacher.support is teacher." in problems


def test_a_run_sends_one_request_for_each_selected_row_and_is_verified(
    whole: Path,
) -> None:
    assert 0 < sent(whole) <= selected_rows(whole)
    found = verify(whole, draws=True)
    assert found.is_sound, found
    (note,) = [check.note for check in found.checks if check.name == "requests"]
    assert note.startswith(f"{sent(whole):,} sent")


def shown(server: TeacherServer, image: Image.Image) -> str:
    """A picture as it is sent."""
    file = io.BytesIO()
    server.model.processor.resized(image).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def asked_about(request: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """The picture and the token ids of a request."""
    (part,) = request["content_parts"]
    return part["url"].partition(",")[2], tuple(request["token_ids"])


def numbers_in(wire: str) -> list[list[int]]:
    """Every list of numbers in it."""
    found = re.findall(r"\d+(?:[\s,\[\]]+\d+)*", wire)
    return [list(map(int, re.findall(r"\d+", each))) for each in found]


def spaced(ids: Iterable[int]) -> str:
    return f" {' '.join(map(str, ids))} "


def spellings(text: str) -> set[str]:
    """A text as it may be written in a request."""
    return {text, json.dumps(text)[1:-1], quote(text), quote_plus(text)}


def keep_draws(monkeypatch: pytest.MonkeyPatch) -> dict[int, Rollouts]:
    """Step -> what is drawn in it, once it is."""
    drawn: dict[int, Rollouts] = {}
    generate = Sampler.generate

    def kept(self: Sampler, batch: PromptBatch) -> Rollouts:
        drawn[batch.step] = generate(self, batch)
        return drawn[batch.step]

    monkeypatch.setattr(Sampler, "generate", kept)
    return drawn


def test_nothing_of_an_unselected_row_leaves_this_machine(
    config: Make, server: TeacherServer, data: PreparedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = keep_draws(monkeypatch)
    run = train(config())
    processor = server.model.processor
    rows: dict[bool, set[tuple[str, tuple[int, ...]]]] = {True: set(), False: set()}
    responses: dict[bool, set[str]] = {True: set(), False: set()}
    for step in steps_of(run):
        assert len(step.selected) <= step.budget
        rollouts = drawn[step.step]
        for row in range(len(rollouts.lengths)):
            example = rollouts.examples[rollouts.prompt_of(row)]
            assert example.id == step.examples[row // step.per_prompt]
            is_selected = row in step.selected
            response = rollouts.tokens[row, : int(rollouts.lengths[row])].tolist()
            responses[is_selected].add(spaced(response))
            if not example.has_crop:
                assert not is_selected
                continue
            ids = (*processor.prompt_ids(example.question), *response)
            rows[is_selected].add((shown(server, open_crop(example)), ids))
    assert {asked_about(request) for request in server.requests} == rows[True]
    # The same tokens may be drawn in a selected row, too.
    others = rows[False] - rows[True]
    assert others, "Some rows must not be selected."
    wire = server.bytes.decode()
    silent = {picture for picture, _ in others} - {picture for picture, _ in rows[True]}
    assert silent, "Some example must never be selected."
    assert not any(picture in wire for picture in silent)
    lists = numbers_in(wire)
    allowed = "".join(spaced(ids) for _, ids in rows[True])
    # Shorter ones may be among the likeliest tokens of a selected row by chance.
    secret = {ids for ids in responses[False] if ids.count(" ") > 4 and ids not in allowed}
    assert secret, "Some response must be long and never selected."
    sent_ids = "".join(map(spaced, lists))
    assert not [ids for ids in secret if ids in sent_ids]
    size = len(processor.tokenizer)
    texts = "\n".join(processor.decode([n for n in ids if n < size]) for ids in lists)
    queried = {
        each.examples[row // each.per_prompt] for each in steps_of(run) for row in each.selected
    }
    asked = {each.question for each in data.examples if each.id in queried}
    unasked = {each.question for each in data.examples} - asked
    assert unasked, "Some question must never be asked about."
    assert not [each for text in unasked for each in spellings(text) if each in wire + texts]
    assert len(server.requests) <= selected_rows(run)
    assert {request["model"] for request in server.requests} == {"a-teacher"}


def test_with_opsd_it_sees_the_full_image_and_the_answer_and_no_crop(
    server: TeacherServer, small_qwen35: Path, tmp_path: Path, larger: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def taught(output: str, *teacher: str) -> Path:
        few = ("distill.k=20", "run.steps=2")
        return train(short_config("opsd", tmp_path, small_qwen35, output, *few, *teacher))

    drawn = keep_draws(monkeypatch)
    run = taught("run", *server.settings())
    processor, expected = server.model.processor, set[tuple[str, tuple[int, ...]]]()
    for step in steps_of(run):
        rollouts = drawn[step.step]
        assert step.scored == step.candidates == list(range(len(rollouts.lengths)))
        for row in step.scored:
            example = rollouts.examples[rollouts.prompt_of(row)]
            prompt = processor.prompt_ids(answered(example))
            told = f"{example.question}\n\nFor reference, the correct answer is: {example.answer}\n"
            assert example.answer
            assert told in processor.decode(prompt)
            response = rollouts.tokens[row, : int(rollouts.lengths[row])].tolist()
            expected.add((shown(server, open_image(example.image)), (*prompt, *response)))
    assert {asked_about(request) for request in server.requests} == expected
    data = PreparedSet.load(tmp_path / "data")
    crops = {shown(server, open_crop(each)) for each in data.examples if each.has_crop}
    assert not any(picture in server.bytes.decode() for picture in crops)
    assert verify(run, draws=True).is_sound
    local = taught("local", f"teacher.path={larger}")
    for one, other in zip(steps_of(run), steps_of(local), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)


def test_failures_are_retried_charged_and_change_nothing(
    config: Make, server: TeacherServer, whole: Path
) -> None:
    faults = {1: "429", 4: "500", 7: "hangs up", 9: "nonsense", 11: "other request"}
    server.fault = lambda number, _: faults.get(number)
    run = train(config("run", "teacher.retries=4"))
    assert_same_end(run, whole)
    assert sent(run) == sent(whole) + len(faults) == len(server.requests)
    assert max(server.answered.values()) == 1
    assert verify(run).is_sound


def test_an_answer_that_comes_twice_belongs_to_one_request(
    small_qwen35: Path, data: PreparedSet, tmp_path: Path, server: TeacherServer, whole: Path
) -> None:
    """With default settings."""
    server.fault = lambda number, _: "twice" if number % 3 == 0 else None
    settings = (*OFTEN, "distill.k=20", *server.settings())
    run = train(tiny(small_qwen35, data.folder, tmp_path / "run", *settings))
    assert_same_end(run, whole)
    assert sent(run) == len(server.requests)
    assert verify(run).is_sound


def test_a_server_that_stalls_has_failed_after_a_while(
    config: Make, server: TeacherServer, whole: Path
) -> None:
    server.fault = lambda number, _: "stalls" if number == 2 else None
    assert_same_end(train(config("run", "teacher.timeout_seconds=1")), whole)


def while_away(
    server: TeacherServer, monkeypatch: pytest.MonkeyPatch, is_away: Callable[[], bool]
) -> None:
    """Let the server hang up on whatever is sent while it is away."""
    usual: Any = server._http.RequestHandlerClass

    class Away(usual):
        def do_POST(self) -> None:  # noqa: N802
            if is_away():
                self.close_connection = True
            else:
                super().do_POST()

    monkeypatch.setattr(server._http, "RequestHandlerClass", Away)


def test_a_server_that_dies_stops_the_run_which_then_resumes_and_drops_no_row(
    config: Make, server: TeacherServer, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        while_away(server, patch, lambda: len(server.requests) >= 5)
        with pytest.raises(ServerError, match=r"failed 6 times in a row.*Answers so far are sto"):
            train(config())
    run, heard = Path(config().run.output or ""), len(server.requests)
    # Two may come at once as the fifth.
    assert heard < sent(run) <= heard + config().teacher.at_once
    assert published(run / "checkpoints")
    again = train(config())
    assert_same_end(again, whole)
    assert max(server.answered.values()) == 1
    assert sent(again) <= sent(whole) + config().teacher.at_once
    assert verify(again).is_sound


def test_a_server_that_is_away_for_a_while_is_survived_with_default_settings(
    small_qwen35: Path, data: PreparedSet, tmp_path: Path, server: TeacherServer, whole: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Only the waits are shorter."""
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 20)
    gone: list[float] = []

    def is_away() -> bool:
        if len(server.requests) >= 5 and not gone:
            gone.append(time.monotonic())
        return bool(gone) and time.monotonic() - gone[0] < 0.5

    while_away(server, monkeypatch, is_away)
    settings = (*OFTEN, "distill.k=20", *server.settings())
    run = train(tiny(small_qwen35, data.folder, tmp_path / "run", *settings))
    assert gone
    assert_same_end(run, whole)
    assert not any(step.dropped for step in steps_of(run))
    assert sent(whole) < sent(run) <= sent(whole) + 8


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        (("model.precision=bfloat16", "run.checkpoint_every=2"), True),
        (("model.precision=bfloat16",), False),
        (("run.checkpoint_every=2",), False),
    ],
)
def test_a_run_that_may_draw_other_tokens_after_a_kill_says_what_that_costs(
    settings: tuple[str, ...], is_told: bool, config: Make
) -> None:
    console = Silent()
    loop.train(config("run", "run.steps=1", *settings), console)
    told = [each for each in console.messages if "Set run.checkpoint_every=1" in each]
    assert len(told) == is_told
    assert all("most of their rows would be dropped" in each for each in told)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("without log-probs", AnswerError, "answered without log-probs"),
        ("few", AnswerError, "gave 1 log-probs for a token, where 20 are needed"),
        ("other tokens", AnswerError, "answered for other tokens than those asked for"),
        ("other picture", AnswerError, "It cuts pictures into other tokens"),
        ("more than 1", AnswerError, "sum to more than 1"),
        ("wide", ModelError, "gave a log-prob of token 99999"),
        ("without chosen", AnswerError, "sent no log-probs at the ids that were chosen"),
        ("chosen in an archive", AnswerError, "or none that can be read"),
        ("fewer chosen", AnswerError, r"19\) log-probs at chosen ids, where \d+ places with 20"),
        ("chosen of other places", AnswerError, "gave two log-probs for one token"),
        ("chosen not finite", AnswerError, "that is not finite"),
        ("400", RefusedError, "Serve a model that reads pictures"),
        ("404", AccessError, "Check the address, the model's name"),
    ],
)
def test_a_wrong_answer_stops_the_run_before_anything_is_learned(
    fault: str, error: type[Exception], words: str, config: Make, server: TeacherServer
) -> None:
    server.fault = lambda *_: fault
    with pytest.raises(error, match=words):
        train(config())
    run = Path(config().run.output or "")
    assert not list((run / "teacher" / "answers").iterdir())
    assert not read_history(run).steps
    assert len(server.requests) <= 2 == config().teacher.at_once


def test_more_log_probs_than_the_server_gives_is_a_sentence(
    config: Make, server: TeacherServer
) -> None:
    server.max_logprobs = 10
    with pytest.raises(RefusedError, match=r"--max-logprobs 20, or lower distill\.k"):
        train(config())


@pytest.mark.usefixtures("unloaded")
def test_what_can_be_known_is_refused_before_the_model_is_loaded(
    config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AccessError, match="serves 'a-teacher', not 'another'"):
        train(config("run", "teacher.model=another"))
    with pytest.raises(AccessError, match="could not be reached"):
        train(config("run", "teacher.server=http://127.0.0.1:9/v1"))
    with pytest.raises(ConfigError, match="NO_SUCH_KEY, which should hold the key"):
        train(config("run", "teacher.key_variable=NO_SUCH_KEY"))
    server.scores = False
    with pytest.raises(AccessError, match=r"are disabled.*--enable-scale-out"):
        train(config())
    server.scores, server.max_model_len = True, 60
    with pytest.raises(ConfigError, match=r"reads at most 60 tokens.*--max-model-len"):
        train(config())
    server.max_model_len, server.version = 4096, "0.27.1"
    with pytest.raises(AccessError, match=r"runs vLLM 0\.27\.1.*Use vLLM 0\.28 or newer"):
        train(config())
    server.version, server.chooses = "0.32.0", False
    runner = r"support is student, but .*: it answered .*requires the V2 model runner\. Use vLLM"
    with pytest.raises(AccessError, match=runner):
        train(config("run", "teacher.support=student"))
    server.version = "0.31.2"
    with pytest.raises(AccessError, match=r"support is student, but .*: it runs vLLM 0\.31\.2\."):
        train(config("run", "teacher.support=student"))
    server.version = "0.32.0"
    server.max_logprobs = 10
    with pytest.raises(RefusedError, match=r"--max-logprobs 20, or lower distill\.k"):
        train(config())
    server.max_logprobs, server.sees = 10_000, False
    with pytest.raises(RefusedError, match=r"At most 0 image.*Serve a model that reads pictures"):
        train(config())
    server.sees, server.version = True, "0.28.0rc2"
    with monkeypatch.context() as patch:
        patch.setattr(server, "shift", 1)
        with pytest.raises(ModelError, match="has another tokenizer than the model"):
            train(config())
    with pytest.raises(AssertionError, match="The model was loaded"):
        train(config())
    assert not server.requests


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    "named",
    [
        {"<|im_start|>": "<|im_end|>", "<|im_end|>": "<|im_start|>"},
        {"<|video_pad|>": "<|other|>"},
        {"<think>": "<other>"},
    ],
    ids=["exchanged", "a special token missing", "another added token missing"],
)
def test_a_teacher_with_other_added_tokens_is_refused_before_the_model_is_loaded(
    named: dict[str, str], config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads(server.tokenizer.to_str())
    for token in content["added_tokens"]:
        token["content"] = named.get(token["content"], token["content"])
    monkeypatch.setattr(server, "tokenizer", Tokenizer.from_str(json.dumps(content)))
    # The pieces of a large vocabulary miss most added tokens.
    pieces = partial(probe_text, pieces=2)
    monkeypatch.setattr("bas_opd.run.served.probe_text", pieces)
    with pytest.raises(ModelError, match="has another tokenizer than the model"):
        train(config())
    assert not server.requests


@pytest.mark.usefixtures("unloaded")
def test_a_server_that_puts_a_token_before_texts_is_asked_not_to(
    config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads(server.tokenizer.to_str())
    start, number = "<|endoftext|>", server.tokenizer.token_to_id("<|endoftext|>")
    processor = content["post_processor"]
    processor["single"].insert(0, {"SpecialToken": {"id": start, "type_id": 0}})
    processor["special_tokens"] = {start: {"id": start, "ids": [number], "tokens": [start]}}
    monkeypatch.setattr(server, "tokenizer", Tokenizer.from_str(json.dumps(content)))
    assert server.tokenizer.encode("?").ids[0] == number
    with pytest.raises(AssertionError, match="The model was loaded"):
        train(config())


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
@pytest.mark.parametrize("support", ["auto", "student", "teacher"])
def test_a_text_only_teacher_is_refused_before_the_model_is_loaded(
    support: str,
    version: str,
    config: Make,
    server: TeacherServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.version = version
    monkeypatch.setattr(server, "is_text_only", True)
    words = r"is not a multimodal model\. The teacher is shown a picture with each row: serve a vis"
    with pytest.raises(RefusedError, match=words):
        train(config("run", f"teacher.support={support}"))
    assert not server.requests


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
@pytest.mark.parametrize("support", ["auto", "student", "teacher"])
@pytest.mark.parametrize("more", [-8, 8])
def test_a_teacher_with_another_vocabulary_is_refused_before_the_model_is_loaded(
    more: int,
    support: str,
    version: str,
    config: Make,
    server: TeacherServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = server.vocabulary
    server.version = version
    monkeypatch.setattr(server, "vocabulary", ours + more)
    words = rf"'a-teacher' at .* predicts {ours + more} token ids and the model that .* {ours}, so"
    with pytest.raises(ModelError, match=words):
        train(config("run", f"teacher.support={support}"))
    assert not server.requests


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("version", ["dev", "0.1.dev9+g1a2b3c4", "0.10.dev2"])
def test_a_server_without_a_version_is_known_by_what_it_can_do(
    version: str, config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.version = version
    with pytest.raises(AssertionError, match="The model was loaded"):
        train(config())
    monkeypatch.setattr(server, "is_text_only", True)
    with pytest.raises(RefusedError, match="is not a multimodal model"):
        train(config("run"))


@pytest.mark.usefixtures("unloaded")
def test_the_checks_before_a_run_send_nothing_of_its_data(
    config: Make, server: TeacherServer, data: PreparedSet
) -> None:
    with pytest.raises(AssertionError, match="The model was loaded"):
        train(config())
    wire = server.bytes.decode()
    processor, size = server.model.processor, len(server.model.processor.tokenizer)
    texts = "\n".join(processor.decode([n for n in i if n < size]) for i in numbers_in(wire))
    questions = {spelt for each in data.examples for spelt in spellings(each.question)}
    assert not [each for each in questions if each in wire + texts]
    bodies = [json.loads(line) for line in wire.splitlines() if line.startswith("{")]
    samples = [each for each in bodies if "content_parts" in each]
    assert len(samples) == 2
    for sample in samples:
        picture, ids = asked_about(sample)
        assert ids == (*processor.prompt_ids("?"), 0)
        assert Image.open(io.BytesIO(base64.b64decode(picture))).getextrema() == ((0, 0),) * 3
    assert not server.requests


def test_a_server_behind_a_proxy_that_drops_fields_is_compared_at_its_own_likeliest(
    config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sample is refused."""

    def drop(request: dict[str, Any]) -> None:
        for field in ("logit_bias", "prompt_logprob_token_ids", "prompt_logprob_start"):
            request["sampling_params"].pop(field, None)

    monkeypatch.setattr(server, "refusal", drop)
    with pytest.raises(AccessError, match="does not count the places that are asked for"):
        train(config("run", "teacher.support=student"))
    run = train(config())
    assert {step.support for step in steps_of(run)} == {"teacher"}
    assert verify(run).is_sound


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("first", [b"/tokenize", b"logit_bias"])
def test_a_server_that_fails_while_it_is_checked_is_refused(
    first: bytes, config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that is not answered leaves nothing unchecked in silence."""
    while_away(server, monkeypatch, lambda: first in server.bytes)
    with pytest.raises(AccessError, match=r"broke off the connection .* Check that it is up"):
        train(config())


def test_a_row_without_an_answer_is_dropped_on_record(config: Make, server: TeacherServer) -> None:
    server.fault = lambda number, _: "500" if number == 1 else None
    console = Silent()
    run = loop.train(config("run", "teacher.retries=0", "teacher.at_once=1"), console).directory
    steps: Any = read_history(run).steps
    (dropped,) = [step for step in steps if step.dropped]
    assert set(dropped.scored) | set(dropped.dropped) == set(dropped.selected)
    assert dropped.calls == len(dropped.scored) == len(dropped.selected) - len(dropped.dropped)
    assert any("have no answer and are dropped" in each for each in console.messages)
    assert verify(run).is_sound
    events = events_of(run)
    event = next(each for each in events if each.get("dropped"))
    del event["dropped"]
    rewrite(run, events)
    assert not verify(run).is_sound


def test_a_spend_limit_stops_before_it_is_passed_and_the_run_resumes(
    config: Make, server: TeacherServer, whole: Path
) -> None:
    journal = read_requests(whole / "teacher" / "requests.jsonl")
    assert journal is not None
    limit = Decimal(journal.tokens * 6 // 10) / 1000
    with pytest.raises(SpendingLimitError, match=r"above the limit of .*teacher\.spend_limit"):
        train(config("run", PRICE, f"teacher.spend_limit={limit}"))
    run = Path(config().run.output or "")
    spent = read_requests(run / "teacher" / "requests.jsonl")
    assert spent is not None
    assert 0 < spent.tokens * Decimal("0.001") <= limit
    assert published(run / "checkpoints")
    assert verify(run, unfinished=True).is_sound
    enough = train(config("run", PRICE, "teacher.spend_limit=9999"))
    assert_same_end(enough, whole)
    assert sent(enough) == len(server.requests) == sent(whole)
    assert verify(enough).is_sound


def test_more_requests_than_allowed_do_not_pass_verification(
    config: Make, server: TeacherServer
) -> None:
    run = train(config())
    path = run / "teacher" / "requests.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    first = json.loads(lines[1])
    path.write_text("".join([*lines, *([json.dumps(first) + "\n"] * 9)]))
    problems = [each for check in verify(run).checks for each in check.problems]
    assert any("requests were sent, more than" in each for each in problems)
    path.write_text(lines[0])
    problems = [each for check in verify(run).checks for each in check.problems]
    assert any("no request for it is on record" in each for each in problems)
    path.unlink()
    problems = [each for check in verify(run).checks for each in check.problems]
    assert any("the journal of requests is missing" in each for each in problems)


@pytest.mark.usefixtures("unloaded")
def test_a_limit_that_pays_for_no_request_is_refused_before_anything_is_asked_or_loaded(
    config: Make, server: TeacherServer, data: PreparedSet
) -> None:
    from bas_opd.commands.doctor import examine
    from bas_opd.commands.plan import plan

    processor = server.model.processor
    sizes = [crop_size(each) for each in data.examples if each.has_crop]
    least = Decimal(min(processor.prompt_length(*each) for each in sizes) + 2) / 1000
    enough, short = (f"teacher.spend_limit={each}" for each in (least, least - Decimal("1e-9")))
    words = rf"costs at least {least} \(\d+ tokens\), but teacher\.spend_limit is .* never be asked"
    with pytest.raises(ConfigError, match=words):
        train(config("run", PRICE, short))
    with pytest.raises(ConfigError, match=words):
        plan(config("run", PRICE, short))
    (finding,) = [each for each in examine(config("run", PRICE, short)) if each.what == "teacher"]
    assert re.search(words, finding.text)
    assert not server.bytes
    assert plan(config("run", PRICE, enough))
    with pytest.raises(AssertionError, match="The model was loaded"):
        train(config("run", PRICE, enough))


def test_a_run_that_has_spent_its_limit_is_refused_before_its_model_is_loaded(
    config: Make, server: TeacherServer, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(config("run", "run.steps=2", PRICE, "teacher.spend_limit=9999"))
    spent = read_requests(run / "teacher" / "requests.jsonl")
    assert spent is not None
    cost, heard = Decimal(spent.tokens) / 1000, len(server.bytes)
    limit = f"teacher.spend_limit={cost}"

    def load(*_: object, **__: object) -> None:
        raise AssertionError("The model was loaded.")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "build_method", load)
        words = (
            rf"so far cost {cost:f} \({spent.tokens:,} tokens\) and another costs at least .*\. Run"
        )
        with pytest.raises(ConfigError, match=words):
            train(config("run", PRICE, limit))
        assert len(server.bytes) == heard
        with pytest.raises(AssertionError, match="The model was loaded"):
            loop.train(config("run", PRICE, limit, "run.seed=9"), Silent(), overwrite=True)
    assert_same_end(train(config("run", PRICE, "teacher.spend_limit=9999")), whole)


def test_a_run_whose_last_answers_may_be_stored_needs_no_higher_limit(
    config: Make, data: PreparedSet, tmp_path: Path
) -> None:
    settings, path = config("run", PRICE, "teacher.spend_limit=1"), tmp_path / "requests.jsonl"
    last = planned_steps(settings, data) - 1
    journal = RequestJournal.resume(path)
    journal.write(last - 1, 0, "a", 990)
    with pytest.raises(ConfigError, match="to resume"):
        check_spending(settings, data, 9, path)
    journal.write(last, 0, "b", 10)
    check_spending(settings, data, 9, path)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_budget_in_tokens_holds_for_requests_too_and_is_recounted(
    retries: int, config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Limits] = []

    def noted(**settings: Any) -> Limits:
        limits.append(Limits(**settings))
        return limits[-1]

    monkeypatch.setattr("bas_opd.run.served.Limits", noted)
    bad = set[tuple[str, tuple[int, ...]]]()

    def always_some(number: int, content: dict[str, Any]) -> str | None:
        bad.update({asked_about(content)} if number % 5 == 1 else ())
        return "500" if asked_about(content) in bad else None

    server.fault = always_some
    settings = ("select.budget=scored_tokens", f"teacher.retries={retries}")
    run = train(config("run", *settings))
    assert {each.in_tokens for each in limits} == {True}
    path = run / "teacher" / "requests.jsonl"
    header, *lines = (json.loads(line) for line in path.read_text().splitlines())
    for step in steps_of(run):
        tokens = [each["response_tokens"] for each in lines if each["step"] == step.step]
        assert any(tokens)
        assert without_retries(tokens, retries) <= step.budget
    assert any(step.dropped for step in steps_of(run))
    assert verify(run).is_sound
    lines[-1]["tokens"] += 1000
    lines[-1]["response_tokens"] += 1000
    forged = [header, *lines, *([lines[-1]] * retries)]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in forged))
    problems = [each for check in verify(run).checks for each in check.problems]
    assert any("response tokens were sent, more than" in each for each in problems)


def killed(config: Config, server: TeacherServer, at: int, *, after: float | None = None) -> None:
    """Train in a process that is killed when its n-th request has arrived, before its answer.

    With `after`, so many seconds later.
    """
    child = os.fork()
    if child == 0:
        try:
            loop.train(config, Silent())
        finally:
            os._exit(0)

    def kill(number: int, _: dict[str, Any]) -> None:
        if number == at and after is not None:
            threading.Timer(after, os.kill, (child, signal.SIGKILL)).start()
        elif number == at:
            os.kill(child, signal.SIGKILL)

    server.fault = kill
    _, status = os.waitpid(child, 0)
    server.fault = no_fault
    assert os.WIFSIGNALED(status), "The run ended before it was killed."


def stored_by(run: Path) -> set[str]:
    """The names of the answers that a run has."""
    return {path.stem for path in (run / "teacher" / "answers").glob("*.safetensors")}


def lines_of(run: Path) -> list[dict[str, Any]]:
    """The journal's lines about requests; a kill may have cut its last one short."""
    text = (run / "teacher" / "requests.jsonl").read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [each for each in map(json.loads, lines) if each.get("tokens")]


def train_again(config: Config, server: TeacherServer) -> Path:
    """Resume a run, which asks for no answer that it has: neither its journal nor the server
    knows of such a request."""
    run = Path(config.run.output or "")
    stored, before, heard = stored_by(run), len(lines_of(run)), len(server.requests)
    train(config)
    charged = [each["key"] for each in lines_of(run)]
    assert not stored & set(charged[before:])
    assert not stored & set(server.asked_for(charged)[heard:])
    return run


@pytest.mark.parametrize("at", [0, 3, 6, 11])
def test_a_kill_while_requests_are_out_repeats_only_what_has_no_answer(
    at: int, config: Make, server: TeacherServer, whole: Path
) -> None:
    killed(config(), server, at)
    run = Path(config().run.output or "")
    assert len(lines_of(run)) >= at + 1, "A request was not charged before it was sent."
    assert_same_end(train_again(config(), server), whole)
    found = verify(run)
    assert found.is_sound, found


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_a_random_moment_loses_no_stored_answer(
    seed: int, config: Make, server: TeacherServer, whole: Path
) -> None:
    """While requests are out, while answers are stored, while the student learns from them."""
    moments = random.Random(seed)
    killed(config(), server, moments.randrange(9), after=moments.expovariate(50))
    run = train_again(config(), server)
    assert_same_end(run, whole)
    # A request that was out is repeated: at most as many were out as may be at once.
    assert sent(run) <= sent(whole) + config().teacher.at_once
    assert verify(run).is_sound


def test_a_kill_without_a_budget_for_repeats_drops_the_rows_that_were_out(
    config: Make, server: TeacherServer
) -> None:
    settings = config("run", "teacher.retries=0", "teacher.at_once=1")
    killed(settings, server, 3)
    run = train(settings)
    steps: Any = read_history(run).steps
    assert sum(len(step.dropped) for step in steps) >= 1
    assert sent(run) <= selected_rows(run)
    assert verify(run).is_sound


def test_a_stop_stores_what_was_out_and_asks_for_none_of_it_again(
    config: Make, server: TeacherServer, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 12)
        with pytest.raises(PreemptionError):
            train(config())
    run = train(config())
    assert_same_end(run, whole)
    assert sent(run) == len(server.requests) == sent(whole)


def test_a_stop_ends_requests_that_are_out_which_stay_charged(
    config: Make, server: TeacherServer, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bas_opd.run.served.STOP_SECONDS", 1.0)

    def stop(number: int, _: dict[str, Any]) -> str | None:
        if number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return "stalls" if number == 5 else None

    server.fault = stop
    started = time.monotonic()
    with pytest.raises(PreemptionError, match="Stopped by SIGTERM after step"):
        train(config())
    assert time.monotonic() - started < 15
    server.fault = no_fault
    run = Path(config().run.output or "")
    assert sent(run) == len(server.requests)
    assert published(run / "checkpoints")
    assert_same_end(train(config()), whole)
    assert sent(run) == len(server.requests) == sent(whole) + 1
    assert max(server.answered.values()) == 1
    assert verify(run).is_sound


def test_a_key_is_sent_and_is_nowhere_on_record(
    config: Make, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-canary-8c1f0d2e77"
    monkeypatch.setenv("TEACHER_KEY", secret)
    console = Silent()
    run = loop.train(config("run", "teacher.key_variable=TEACHER_KEY"), console).directory
    assert all(each["Authorization"] == f"Bearer {secret}" for each in server.headers)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert not any(secret in each for each in console.messages)


def test_a_key_that_goes_out_in_the_clear_is_named(
    config: Make,
    server: TeacherServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OPEN_KEY", "sk-canary-8c1f0d2e77")
    monkeypatch.setattr("bas_opd.serving.endpoint._is_here", lambda _: False)
    train(config("run", "teacher.key_variable=OPEN_KEY", "run.steps=1"))
    assert "The key in OPEN_KEY is sent to 127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("teacher.server=http://h/v1",), "Set teacher.model"),
        (("teacher.model=m",), "teacher.model is for a served teacher"),
        (("teacher.retries=3",), "teacher.retries is for a served teacher"),
        (("teacher.support=student",), "teacher.support is for a served teacher"),
        (("teacher.server=http://h/v1", "teacher.model=m", "teacher.path=p"), "are both set"),
        (("teacher.server=http://h/v1", "teacher.model=m", "teacher.mode=ema"), "never changes"),
        (
            ("teacher.server=http://h/v1", "teacher.model=m", "teacher.spend_limit=3"),
            "need each other",
        ),
        (
            (
                "teacher.server=http://h/v1",
                "teacher.model=m",
                "teacher.price_per_million_tokens=3",
            ),
            "need each other",
        ),
        (
            (
                "teacher.server=http://h/v1",
                "teacher.model=m",
                "select.budget=processed_tokens",
            ),
            "computes it for each",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(preset("learned25"), ["model.path=m", "data.path=d", *settings])


def test_only_a_run_asks_a_served_teacher(config: Make, server: TeacherServer) -> None:
    from bas_opd.audit.subject import Request, Subject
    from bas_opd.cli.plan import lines
    from bas_opd.commands.doctor import examine
    from bas_opd.commands.plan import plan

    run = train(config())
    asked = len(server.requests)
    priced = ("teacher.price_per_million_tokens=10", "teacher.spend_limit=0.001")
    planned = plan(config("other", *priced))
    (warning,) = [each for each in planned.warnings if "cost" in each]
    without = plan(config("other", *priced, "teacher.support=teacher")).tokens
    # Compared at the student's likeliest tokens, the student computes the selected rows once more.
    assert planned.tokens.student is not None
    assert planned.tokens.total == without.total + planned.tokens.student  # type: ignore[operator]
    assert (planned.tokens.rescored, without.rescored) == (planned.tokens.student, 0)
    shown = [line for line in lines(planned) if line.startswith("student's top-k")]
    assert shown[0].endswith(f"about {planned.tokens.student:,} tokens, prompts measured")
    (finding,) = [each for each in examine(config("other")) if each.what == "teacher"]
    assert "compared at the likeliest tokens of the student" in finding.text
    assert "above the limit of 0.001" in warning
    with pytest.raises(ConfigError, match="outside the budget of a run"):
        plan(config("other"), probe=True)
    with pytest.raises(ConfigError, match="--teacher student"):
        _ = Subject(Request(run=run)).method
    Subject(Request(run=run, teacher="student")).restore_newest()
    assert len(server.requests) == asked
