"""One evaluation in this process: how it stops, how it fails, and what it leaves."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, stored, write_parquet
from judge_fixtures import read
from progress_fixtures import Quiet
from serving_fixtures import ChatServer, fails, in_turn

import bas_opd
from bas_opd.answers import PARSER_VERSION
from bas_opd.errors import BasOpdError, ConfigError, PreemptionError, RunDirectoryError
from bas_opd.evaluate import results, samples
from bas_opd.evaluate.command import Request, evaluate_model
from bas_opd.evaluate.judge import VerdictCache
from bas_opd.evaluate.samples import AppendedLines
from bas_opd.evaluate.weights import weights_fingerprint
from bas_opd.files import hash_of, sha256
from bas_opd.model.base import small_base
from bas_opd.run.lock import locked
from bas_opd.serving.client import AccessError, Spending

N = 12
UNCLEAR = "Both A and B could be meant."


def raising(error: Exception) -> Callable[..., Any]:
    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return raises


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    prompts = [f"What does sign {sign} say?\nA. STOP\nB. GO" for sign in range(N)]
    rows = [{"query": prompt, "response": "A", "image": stored(png())} for prompt in prompts]
    write_parquet(tmp_path / "zoombench/data/test.parquet", rows)
    return tmp_path / "zoombench"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(in_turn("A")).running() as running:
        yield running


@pytest.fixture
def served(server: ChatServer, questions: Path, tmp_path: Path) -> Callable[..., Request]:
    def request(**more: Any) -> Request:
        settings: dict[str, Any] = {
            "model": "a-model",
            "benchmarks": ["zoombench"],
            "data": {"zoombench": str(questions)},
            "out": tmp_path / "out",
            "partial": True,
            "server": server.endpoint(model="a-model", at_once=2),
            "server_weights": "step-100",
        }
        return Request(**{**settings, **more})

    return request


Served = Callable[..., Request]


def local(questions: Path, out: Path, **more: Any) -> Request:
    return Request(
        model=str(small_base()),
        benchmarks=["zoombench"],
        data={"zoombench": str(questions)},
        out=out,
        partial=True,
        device="cpu",
        batch=5,
        max_response_tokens=2,
        **more,
    )


def report(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())


def prompt(request: dict[str, Any]) -> str:
    return request["messages"][0]["content"][1]["text"]


def test_stopped_between_batches_it_keeps_what_was_decoded_and_says_how_much(
    questions: Path, tmp_path: Path
) -> None:
    request = local(questions, tmp_path / "out")
    said = r"^Stopped by SIGTERM; 10 answers are saved\. Rerun the same command to resume\.$"
    with pytest.raises(PreemptionError, match=said):
        evaluate_model(request, Quiet(then=ask_to_stop, after=7))
    evaluate_model(request, Quiet())
    lines = (tmp_path / "out/zoombench/outputs.jsonl").read_text().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == len(lines) == N


def test_stopped_while_it_judges_it_says_the_same(server: ChatServer, served: Served) -> None:
    server.play = lambda request: UNCLEAR if request["model"] == "a-model" else "Yes"
    request = served(judge=server.endpoint(at_once=1))
    evaluate_model(served(only="generate"), Quiet())
    with pytest.raises(PreemptionError, match="12 answers are saved"):
        evaluate_model(request, Quiet(then=ask_to_stop, after=1))


@pytest.mark.parametrize("place", ["an answer", "the scores", "a verdict", "the report"])
def test_a_full_disk_is_a_sentence_and_nothing_saved_is_lost(
    place: str,
    server: ChatServer,
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.play = lambda request: UNCLEAR if request["model"] == "a-model" else "Yes"
    request = served(judge=server.endpoint(tries=1))
    full = raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patch:
        if place == "an answer":
            patch.setattr(AppendedLines, "append", full)
        elif place == "the scores":
            patch.setattr(samples, "write_text", full)
        elif place == "a verdict":
            patch.setattr(VerdictCache, "add", full)
        else:
            patch.setattr(results, "write_text", full)
        with pytest.raises(BasOpdError, match=r"cannot continue: .*No space left.*--out") as caught:
            evaluate_model(request, Quiet())
    assert caught.value.exit_code == 1
    asked = len(server.requests)
    assert "100.00" in evaluate_model(request, Quiet())
    on_record = {"an answer": 0, "a verdict": N, "the scores": 2 * N, "the report": 2 * N}
    assert len(server.requests) == asked + 2 * N - on_record[place]


def test_a_folder_that_is_a_file_is_a_sentence(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"is a file\. Name a folder with --out\."):
        evaluate_model(served(out=tmp_path / "file"), Quiet())
    with pytest.raises(BasOpdError, match="cannot continue"):
        evaluate_model(served(out=tmp_path / "file/out"), Quiet())


def test_a_folder_in_use_is_an_error_about_out(served: Served, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"), pytest.raises(RunDirectoryError, match="--out") as caught:
        evaluate_model(served(), Quiet())
    assert f"in use by process {os.getpid()}" in str(caught.value)
    assert "run.output" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"server_weights": ""}, "--server-weights"),
        ({"max_pixels": 1000}, "--max-pixels"),
        ({"device": "cpu"}, "--device"),
    ],
)
def test_what_a_server_cannot_know_or_heed_is_refused(
    settings: dict[str, Any], words: str, served: Served
) -> None:
    with pytest.raises(ConfigError, match=words):
        served(**settings)


def test_one_refused_question_is_unscored_and_counted_and_the_others_count(
    server: ChatServer, served: Served, tmp_path: Path
) -> None:
    server.play = lambda each: fails(400, "too large") if "sign 3 " in prompt(each) else "A"
    shown = Quiet()
    evaluate_model(served(), shown)
    (message,) = shown.messages
    assert "'test-4' first" in message
    assert "status 400: too large" in message
    (entry,) = report(tmp_path / "out")["benchmarks"]
    counts = (entry["primary"]["correct"], entry["unscored"], entry["refused"], entry["deferred"])
    assert counts == (N - 1, 1, 1, 0)


def test_no_access_is_still_an_error(server: ChatServer, served: Served) -> None:
    server.play = in_turn(fails(403, "not yours"))
    with pytest.raises(AccessError, match="Check the address"):
        evaluate_model(served(), Quiet())


def test_the_report_says_what_the_numbers_of_a_model_in_this_process_rest_on(
    questions: Path, tmp_path: Path
) -> None:
    evaluate_model(local(questions, tmp_path / "out", max_pixels=90_000), Quiet())
    told = report(tmp_path / "out")
    files = [file for file in small_base().iterdir() if file.name != "README.md"]
    recorded = {file.name: sha256(file) for file in files}
    assert told["weights"] == recorded, "as a run records its model when it has finished"
    assert told["settings"] == {
        "weights": weights_fingerprint(recorded),
        "decoding": "greedy (temperature 0, seed 42), one full image, no thinking",
        "max_response_tokens": 2,
        "max_pixels": 90_000,
    }
    assert told["identity"] == hash_of(told["settings"])
    assert (told["parser"], told["version"]) == (PARSER_VERSION, bas_opd.__version__)
    assert (told["judge"], told["benchmarks"][0]["judge"]) == (None, None)


def test_the_report_says_who_was_asked_and_who_judged_and_how(
    server: ChatServer, served: Served, tmp_path: Path
) -> None:
    def play(request: dict[str, Any]) -> Any:
        if request["model"] == "a-model":
            return fails(422, param="seed") if "seed" in request else UNCLEAR
        return fails(400, param="temperature") if "temperature" in request else "Yes"

    server.play = play
    judge = server.endpoint(extra={"reasoning_effort": "low"})
    evaluate_model(served(judge=judge), Quiet())
    first = report(tmp_path / "out")
    (entry,) = first["benchmarks"]
    assert (first["weights"], first["settings"]["weights"]) == (None, "step-100")
    assert "temperature 0, seed 42" in first["settings"]["decoding"]
    assert entry["fallbacks"] == ["sent without seed"]
    assert entry["judge"] == {
        "url": server.url,
        "model": "a-judge",
        "extra": {"reasoning_effort": "low"},
        "max_tokens": 1024,
        "fallbacks": ["sent without temperature"],
    }
    evaluate_model(served(judge=judge, only="report"), Quiet())
    assert report(tmp_path / "out") == first, "also where nobody is asked any more"


def test_the_spending_limit_covers_all_commands(server: ChatServer, served: Served) -> None:
    def play(request: dict[str, Any]) -> Any:
        return f"{UNCLEAR} {prompt(request)}" if request["model"] == "a-model" else "Yes"

    server.play = play
    for ceiling in (5, 5, 7):
        shown = Quiet()
        spending = Spending(max_requests=ceiling)
        evaluate_model(served(judge=server.endpoint(), spending=spending), shown)
        assert sum(each["model"] == "a-judge" for each in server.requests) == ceiling
        assert f"{N - ceiling} of {N} answers" in shown.messages[0]
    assert len({read(each).answer for each in server.requests if each["model"] == "a-judge"}) == 7
