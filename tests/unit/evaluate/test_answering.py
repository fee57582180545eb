"""Models that answer: in this process, and behind a server."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from serving_fixtures import ChatServer, Play, fails, in_turn, says
from shapes import make_pictures
from stage_fixtures import make_model

from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.images import open_crop
from bas_opd.errors import ConfigError, DataError, OutOfMemory, PreemptionError
from bas_opd.evaluate.answering import Answerer, LocalAnswerer, ModelAnswers, ServedAnswerer
from bas_opd.evaluate.benchmarks import LoadedSet, benchmark
from bas_opd.evaluate.questions import Output, Picture, Question
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.evaluate.weights import Checkpoint
from bas_opd.files import hash_of
from bas_opd.model import encoding, loading
from bas_opd.model.base import small_base
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.serving.client import ChatClient
from bas_opd.types import Hooks, Prompt


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def picture(image: Image.Image | None = None, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    (image or Image.new("RGB", (8, 4), "red")).save(stream, kind, **options)
    return stream.getvalue()


def question(data: bytes, prompt: str = "What colour?") -> Question:
    shown = Picture(lambda: data, name="of question q")
    return Question(id="q", picture=shown, prompt=prompt, form="short", reference="red")


def answers(play: Play, *questions: Question) -> tuple[dict[int, Output], ChatServer]:
    with ChatServer(play).running() as server:
        answerer: Answerer = ServedAnswerer(client=ChatClient(server.endpoint()), weights="w")
        return dict(answerer.answers(questions)), server


def sent_picture(data: bytes) -> tuple[str, bytes]:
    _, server = answers(in_turn("red"), question(data))
    kind, _, text = server.requests[0]["messages"][0]["content"][0]["image_url"]["url"].partition(
        ";base64,"
    )
    return kind, base64.b64decode(text)


def test_a_question_is_one_message_with_one_picture_at_temperature_zero_and_the_seed() -> None:
    _, server = answers(in_turn("red"), question(picture()))
    (request,) = server.requests
    (message,) = request["messages"]
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    assert message["content"][1]["text"] == "What colour?"
    assert (request["temperature"], request["seed"], request["max_tokens"]) == (0, 42, 1024)


def test_each_answer_goes_to_its_own_question() -> None:
    def play(request: dict[str, Any]) -> Any:
        text = request["messages"][0]["content"][1]["text"]
        return says(f"re: {text}", wait_seconds=0.1 if text == "0" else 0)

    got, _ = answers(play, *(question(picture(), prompt=str(n)) for n in range(12)))
    assert {place: output.text for place, output in got.items()} == {
        place: f"re: {place}" for place in range(12)
    }


def test_an_answer_says_whether_it_was_cut_and_what_it_took() -> None:
    def play(request: dict[str, Any]) -> Any:
        is_taken = "temperature" not in request
        return says("It is", finish="length") if is_taken else fails(400, param="temperature")

    got, _ = answers(play, question(picture()))
    assert got == {0: Output(text="It is", is_cut=True, note="sent without temperature")}


def test_a_server_that_gives_no_finish_reason_leaves_open_whether_an_answer_was_cut() -> None:
    got, _ = answers(lambda _: says("It is", finish=None), question(picture()))
    assert got == {0: Output(text="It is", is_cut=None)}


def test_a_question_that_is_refused_is_no_answer_and_stops_no_other() -> None:
    def play(request: dict[str, Any]) -> Any:
        text = request["messages"][0]["content"][1]["text"]
        return fails(400, "picture too large") if text == "1" else "red"

    got, _ = answers(play, *(question(picture(), prompt=str(n)) for n in range(3)))
    assert [got[place].text for place in range(3)] == ["red", "", "red"]
    assert [bool(got[place].refusal) for place in range(3)] == [False, True, False]
    assert "status 400: picture too large" in got[1].refusal


def test_a_server_that_takes_no_seed_still_answers() -> None:
    got, _ = answers(
        lambda request: fails(422, param="seed") if "seed" in request else "red",
        question(picture()),
    )
    assert got == {0: Output(text="red", is_cut=False, note="sent without seed")}


def test_a_plain_jpeg_goes_as_it_is() -> None:
    data = picture()
    assert sent_picture(data) == ("data:image/jpeg", data)


def test_a_rotated_picture_goes_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    kind, data = sent_picture(picture(exif=exif))
    assert kind == "data:image/png"
    assert Image.open(io.BytesIO(data)).size == (4, 8)


def test_a_transparent_picture_is_sent_on_white() -> None:
    kind, data = sent_picture(picture(Image.new("RGBA", (3, 3), (0, 0, 0, 0)), "PNG"))
    assert kind == "data:image/png"
    assert Image.open(io.BytesIO(data)).getpixel((1, 1)) == (255, 255, 255)


def test_a_picture_that_cannot_be_used_is_named_and_not_sent() -> None:
    broken = question(picture()[:200])
    with ChatServer(in_turn("red")).running() as server:
        answerer = ServedAnswerer(client=ChatClient(server.endpoint()), weights="w")
        with pytest.raises(DataError, match="of question q"):
            list(answerer.answers([broken]))
    assert server.requests == []


def test_another_model_or_decoding_is_another_identity() -> None:
    def identity(*, weights: str = "w", tokens: int = 1024, **settings: Any) -> str:
        client = ChatClient(server.endpoint(**settings))
        served = ServedAnswerer(client=client, weights=weights, max_response_tokens=tokens)
        return hash_of(served.settings)

    server = ChatServer(in_turn("red"))
    with server.running():
        identities = [
            identity(),
            identity(weights="step 100"),
            identity(tokens=8),
            identity(model="other"),
            identity(url="http://127.0.0.1:1/v1"),
            identity(extra={"top_k": 1}),
        ]
        assert len(set(identities)) == len(identities)
        assert identity(at_once=1, tries=2, timeout_seconds=1.0) == identities[0]


def test_the_settings_of_a_served_model_are_recorded() -> None:
    with ChatServer(in_turn("red")).running() as server:
        endpoint = server.endpoint(extra={"top_k": 1})
    answerer = ServedAnswerer(client=ChatClient(endpoint), weights="step-200")
    assert answerer.settings == {
        "url": endpoint.url,
        "model": "a-judge",
        "weights": "step-200",
        "extra": {"top_k": 1},
        "decoding": "temperature 0, seed 42, one full image",
        "max_response_tokens": 1024,
    }


def test_the_model_is_loaded_once_for_all_benchmarks_and_not_before_a_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Any] = []
    load = loading.open_model
    monkeypatch.setattr(
        loading, "open_model", lambda *a, **more: loaded.append(0) or load(*a, **more)
    )
    base = Checkpoint(folder=small_base())
    answerer = LocalAnswerer(checkpoint=base, device="cpu", max_response_tokens=3)
    assert answerer.settings
    assert loaded == []
    asked = [question(picture(Image.new("RGB", (64, 64), "red"), "PNG"))]
    first = list(answerer.answers(asked))
    assert list(answerer.answers(asked)) == first
    assert loaded == [0]


def test_decoding_and_view_are_recorded() -> None:
    base = Checkpoint(folder=small_base())
    full, crop = (LocalAnswerer(checkpoint=base, view=view).settings for view in ("full", "crop"))
    assert full["decoding"] == "greedy (temperature 0, seed 42), one full image, no thinking"
    assert crop["decoding"] == "greedy (temperature 0, seed 42), one crop, no thinking"


@pytest.fixture(scope="module")
def model(small_qwen35: Path) -> VisionLanguageModel:
    return make_model(small_qwen35)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> LoadedSet:
    made = make_pictures(tmp_path_factory.mktemp("pictures") / "set", n=6, seed=0)
    return benchmark("finesearch").load(made.folder)


def greedy(model: VisionLanguageModel, *, batch: int = 2, **more: Any) -> ModelAnswers:
    return ModelAnswers(model=model, max_response_tokens=8, prompts_per_batch=batch, **more)


def test_answers_do_not_depend_on_order_or_batch(
    model: VisionLanguageModel, pictures: LoadedSet
) -> None:
    questions = pictures.questions
    forward = dict(greedy(model).answers(questions))
    backward = dict(greedy(model, batch=4).answers(questions[::-1]))
    assert [forward[place] for place in range(6)] == [backward[5 - place] for place in range(6)]
    assert len({output.text for output in forward.values()}) > 1


def test_memory_that_runs_out_halves_the_batches_and_repeats_no_answer(
    model: VisionLanguageModel, pictures: LoadedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, sizes, told = model.prefill, list[int](), list[str]()
    most = 6

    def crowded(prompts: Sequence[Prompt]) -> Prefix:
        sizes.append(len(prompts))
        if len(prompts) > most:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return prefill(prompts)

    monkeypatch.setattr(model, "prefill", crowded)
    whole = dict(greedy(model, batch=4).answers(pictures.questions))
    sizes.clear()
    answering = greedy(model, batch=4, hooks=Hooks(notice=told.append))
    answers = answering.answers(pictures.questions)
    got = [next(answers)]
    most = 1
    got += answers
    assert dict(got) == whole
    assert len(got) == len(whole)
    assert sizes == [4, 2, 2, 1, 1]
    assert [text.split(";")[0] for text in told] == ["Out of memory in the evaluation"] * 2
    assert len(list(answering.answers(pictures.questions))) == 6
    assert sizes[5:] == [1] * 6
    most = 0
    with pytest.raises(
        OutOfMemory, match=r"even in its smallest batch.* Lower --max-pixels or --max-response-"
    ):
        next(answering.answers(pictures.questions))


def test_scores_in_memory_are_in_the_order_of_the_questions(
    model: VisionLanguageModel, pictures: LoadedSet
) -> None:
    outputs = dict(greedy(model).answers(pictures.questions))
    last_words = [outputs[place].text.split()[-1] for place in range(6)]
    told = [
        replace(question, reference=word.strip("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~") or "none")
        for question, word in zip(pictures.questions, last_words, strict=True)
    ]
    told[2] = replace(told[2], reference="never said")
    scored = score_in_memory(benchmark("finesearch"), told, reversed(outputs.items()))
    assert [each.id for each in scored] == [question.id for question in told]
    expected = [question.reference not in ("none", "never said") for question in told]
    assert [each.is_correct for each in scored] == expected
    assert any(expected)


def test_a_second_model_decodes_no_picture_again(
    model: VisionLanguageModel, pictures: LoadedSet
) -> None:
    prompts: dict[str, Any] = {}
    first = dict(greedy(model, prompts=prompts).answers(pictures.questions))

    def decoded() -> bytes:
        raise AssertionError("the prompt is encoded already")

    unread = Picture(decoded, name="none")
    blind = [replace(question, picture=unread) for question in pictures.questions]
    assert dict(greedy(model, prompts=prompts).answers(blind)) == first
    assert dict(greedy(model).answers(pictures.questions)) == first


def test_the_crop_view_shows_the_crop_and_skips_examples_without_one(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    finesearch = benchmark("finesearch")
    made = make_finesearch(tmp_path / "set", split="val", size="small", n=24, seed=0)
    full, crops = (finesearch.load(made.folder, view=view) for view in ("full", "crop"))
    cropped = [example for example in made.examples if example.has_crop]
    assert 0 < len(cropped) < len(made.examples) == len(full)
    assert [question.id for question in crops.questions] == [example.id for example in cropped]
    assert full.fingerprint != crops.fingerprint
    prompts: dict[str, Any] = {}
    dict(greedy(model, prompts=prompts).answers(crops.questions))
    for example in cropped:
        expected = model.processor.encode(open_crop(example), example.question)
        assert prompts[example.id].pixel_values.equal(expected.pixel_values)
        assert prompts[example.id].input_ids.equal(expected.input_ids)


def test_a_benchmark_without_crops_has_no_crop_view(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="POPE has no crops"):
        benchmark("pope").load(tmp_path, view="crop")


@pytest.mark.parametrize(("polls", "answered"), [(3, 0), (7, 0), (8, 2), (9, 2), (10, 4)])
def test_a_stop_takes_effect_while_encoding_and_decoding_and_between_batches(
    polls: int, answered: int, model: VisionLanguageModel, pictures: LoadedSet
) -> None:
    left = polls

    def poll() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PreemptionError("SIGTERM")

    got: list[int] = []
    answering = replace(greedy(model, hooks=Hooks(poll=poll)), max_response_tokens=1)
    with pytest.raises(PreemptionError):
        got.extend(place for place, _ in answering.answers(pictures.questions))
    assert len(got) == answered


def test_each_picture_is_decoded_once_wherever_its_questions_are(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    decode = Picture.decode

    def watched(self: Picture) -> Image.Image:
        decoded.append(self.name)
        return decode(self)

    monkeypatch.setattr(Picture, "decode", watched)
    shown = {name: picture(Image.new("RGB", (96, 64), name)) for name in ("red", "blue", "green")}

    def ask(colour: str, text: str) -> Question:
        return replace(
            question(shown[colour], text),
            id=f"{colour} {text}",
            picture=Picture(lambda: shown[colour], name=colour),
        )

    texts = ("What?", "What colour is it?", "Where is it?", "Why?")
    questions = [ask(colour, text) for text in texts for colour in shown]
    answerer = LocalAnswerer(
        checkpoint=Checkpoint(folder=small_qwen35), max_response_tokens=6, prompts_per_batch=1
    )
    got = dict(answerer.answers(questions))
    assert sorted(decoded) == sorted(shown)
    one_by_one = [dict(answerer.answers([each]))[0] for each in questions]
    assert [got[place] for place in range(len(questions))] == one_by_one


def test_threads_open_the_next_pictures_while_questions_are_answered(
    small_qwen35: Path, pictures: LoadedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LocalAnswerer(
        checkpoint=Checkpoint(folder=small_qwen35), max_response_tokens=6, prompts_per_batch=1
    )
    questions = [
        replace(each, picture=Picture(each.picture.read, name=str(number)))
        for number, each in enumerate(pictures.questions * 3)
    ]
    for number, question in enumerate(questions):
        question.picture.__dict__["key"] = str(number)
    expected = dict(plain.answers(questions))
    opened: list[tuple[str, bool]] = []
    decode = Picture.decode

    def watched(shown: Picture) -> Image.Image:
        opened.append((shown.name, threading.current_thread() is threading.main_thread()))
        return decode(shown)

    monkeypatch.setattr(Picture, "decode", watched)
    monkeypatch.setattr(encoding, "idle_threads", lambda _: 2)
    answers = replace(plain).answers(questions)
    got = [next(answers)]
    deadline = time.monotonic() + 20
    while len(opened) < 16 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {name for name, _ in opened} == {str(number) for number in range(16)}  # two strides
    got += answers
    assert dict(got) == expected
    assert sorted(name for name, _ in opened) == sorted(str(n) for n in range(18))
    assert not any(is_main for _, is_main in opened)
