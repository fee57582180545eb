"""A model under test that somebody else serves."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image
from serving_fixtures import ChatServer, Play, fails, in_turn, says

from bas_opd.errors import DataError
from bas_opd.evaluate.answering import Answerer, Output
from bas_opd.evaluate.questions import Question
from bas_opd.evaluate.served import ServedAnswerer
from bas_opd.evaluate.store import key_of
from bas_opd.serving.client import ChatClient


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def picture(image: Image.Image | None = None, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    (image or Image.new("RGB", (8, 4), "red")).save(stream, kind, **options)
    return stream.getvalue()


def question(data: bytes, prompt: str = "What colour?") -> Question:
    return Question(id="q", picture=lambda: data, prompt=prompt, form="short", reference="red")


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


def test_a_transparent_picture_goes_on_white() -> None:
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
        return ServedAnswerer(client=client, weights=weights, max_response_tokens=tokens).identity

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


def test_what_is_behind_an_identity_can_be_read() -> None:
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
    assert key_of(**answerer.settings) == answerer.identity
