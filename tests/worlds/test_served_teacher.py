"""A teacher behind a server and several processes: the leader asks, with the promises of one."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from process import ask_to_stop, at
from ranks import Ranks, Start, Train
from run_states import assert_same_end, assert_same_run, steps_of
from small_models import build_small_model
from teacher_server import TeacherServer, no_fault
from test_runs import assert_ended, assert_sound

from bas_opd.learn import Learner
from bas_opd.run.manifest import published
from bas_opd.serving.request_journal import RequestJournal, read_requests

SETTINGS = ("distill.k=20", "teacher.at_once=2", "teacher.retries=2", "run.keep_checkpoints=9")
Settings = Callable[..., tuple[str, ...]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without long waits, in the processes too."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("random.uniform", lambda *_: 0.001)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeacherServer]:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    build_small_model(folder, family="qwen3_vl", hidden=32, layers=2, seed=5)
    with TeacherServer(folder).running() as server:
        yield server


@pytest.fixture
def server(kept: TeacherServer) -> TeacherServer:
    kept.fault, kept.requests, kept.headers = no_fault, [], []
    kept.answered.clear()
    return kept


@pytest.fixture
def settings(server: TeacherServer) -> Settings:
    return lambda *overrides: (*SETTINGS, *server.settings(*overrides))


@pytest.fixture(scope="module")
def taught(
    kept: TeacherServer, train: Train, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[Path, Counter[str]]]:
    """Runs of one, two and three processes that nothing happened to, and what each asked for."""
    home = tmp_path_factory.mktemp("taught")
    found = {}
    for size in (1, 2, 3):
        kept.fault, kept.requests = no_fault, []
        ended = train(size, home / str(size), *SETTINGS, *kept.settings())
        assert [each.code for each in ended] == [0] * size, ended
        found[size] = home / str(size), Counter(map(kept.key, kept.requests))
    return found


def journal_of(run: Path) -> RequestJournal:
    journal = read_requests(run / "teacher" / "requests.jsonl")
    assert journal is not None
    return journal


def lines_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "teacher" / "requests.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


@pytest.mark.parametrize("size", [2, 3])
def test_a_served_teacher_teaches_several_processes_like_one(
    size: int, taught: dict[int, tuple[Path, Counter[str]]]
) -> None:
    (alone, asked_alone), (run, asked) = taught[1], taught[size]
    assert_same_run(run, alone)
    assert_sound(run)
    assert asked == asked_alone
    assert set(asked.values()) == {1}
    assert journal_of(run).requests == journal_of(alone).requests
    assert journal_of(run).tokens == journal_of(alone).tokens
    for step in steps_of(run):
        assert len(step["student_tokens_of_ranks"]) == size
        assert sum(step["student_tokens_of_ranks"]) == step["student_tokens"]


@pytest.mark.parametrize("setting", ["shard.reshard=true", "shard.replicas=2"])
def test_the_students_likeliest_tokens_are_those_of_one_process_however_it_is_spread(
    setting: str, train: Train, settings: Settings, tmp_path: Path,
    taught: dict[int, tuple[Path, Counter[str]]],
) -> None:  # fmt: skip
    ended = train(2, tmp_path / "run", *settings(setting))
    assert [each.code for each in ended] == [0, 0], ended
    assert_same_run(tmp_path / "run", taught[1][0])
    for step, alone in zip(steps_of(tmp_path / "run"), steps_of(taught[1][0]), strict=True):
        assert step["support"] == "student"
        assert step["rescored_tokens"] == alone["rescored_tokens"] > 0
    assert_sound(tmp_path / "run")


def test_the_leader_alone_needs_the_key_and_checks_the_server(
    train: Train, server: TeacherServer, settings: Settings, tmp_path: Path
) -> None:
    key = "sk-canary-8c1f0d2e77"

    def armed(rank: int) -> None:
        if rank == 0:
            os.environ["TEACHER_KEY"] = key

    with_key = settings("teacher.key_variable=TEACHER_KEY", "run.steps=1")
    ended = train(2, tmp_path / "run", *with_key, fault=armed)
    assert [each.code for each in ended] == [0, 0], ended
    assert all(each["Authorization"] == f"Bearer {key}" for each in server.headers)
    assert not any(key in each.output for each in ended)
    files = [each for each in (tmp_path / "run").rglob("*") if each.is_file()]
    assert not any(key.encode() in each.read_bytes() for each in files)
    before = len(server.headers) - len(server.requests)
    server.headers, server.requests = [], []
    ended = train(1, tmp_path / "alone", *with_key, fault=armed)
    assert [each.code for each in ended] == [0], ended
    assert before == len(server.headers) - len(server.requests)


@pytest.mark.parametrize(("killed", "at"), [(0, 0), (0, 6), (1, 3)])
def test_a_kill_while_requests_are_out_repeats_only_what_has_no_answer(
    killed: int, at: int, start: Start, train: Train, server: TeacherServer, settings: Settings,
    taught: dict[int, tuple[Path, Counter[str]]], tmp_path: Path,
) -> None:  # fmt: skip
    ranks: list[Ranks] = []

    def kill(number: int, _: dict[str, Any]) -> None:
        if number == at:
            ranks[0].send(killed, signal.SIGKILL)

    server.fault = kill
    run = tmp_path / "run"
    ranks.append(start(2, run, *settings()))
    ended = ranks[0].wait()
    assert ended[killed].code == -signal.SIGKILL
    assert ended[1 - killed].code not in (0, -signal.SIGKILL)
    server.fault = no_fault
    stored = {path.stem for path in (run / "teacher" / "answers").glob("*.safetensors")}
    before, heard = len(lines_of(run)), len(server.requests)
    # All that arrived was charged before, and of a killed leader maybe one that never left it.
    assert journal_of(run).requests.total() >= len(server.requests) >= at + 1
    again = train(2, run, *settings())
    assert [each.code for each in again] == [0, 0], again
    assert_same_end(run, taught[2][0])
    assert_sound(run)
    assert not {line["key"] for line in lines_of(run)[before:] if line["tokens"]} & stored
    charged = [line["key"] for line in lines_of(run) if line["tokens"]]
    assert not set(server.asked_for(charged)[heard:]) & stored
    assert journal_of(run).requests.total() >= len(server.requests)


def test_another_number_of_processes_asks_for_no_stored_answer_again(
    train: Train, server: TeacherServer, settings: Settings,
    taught: dict[int, tuple[Path, Counter[str]]], tmp_path: Path,
) -> None:  # fmt: skip
    """Three processes are stopped with all answers of their third step stored, and one resumes."""
    stop = at(Learner, "update", ask_to_stop, call=3, before=True)
    run = tmp_path / "run"
    ended = train(3, run, *settings(), fault=lambda rank: stop() if rank == 2 else None)
    assert [each.code for each in ended] == [75] * 3, ended
    again = train(1, run, *settings())
    assert [each.code for each in again] == [0], again
    assert_same_run(run, taught[1][0])
    assert_sound(run)
    assert set(server.answered.values()) == {1}


def test_a_signal_to_one_process_while_requests_are_out_stops_all_with_a_checkpoint(
    start: Start, train: Train, server: TeacherServer, settings: Settings,
    taught: dict[int, tuple[Path, Counter[str]]], tmp_path: Path,
) -> None:  # fmt: skip
    ranks: list[Ranks] = []

    def stop(number: int, _: dict[str, Any]) -> None:
        if number == 5:
            ranks[0].send(1, signal.SIGTERM)

    server.fault = stop
    ranks.append(start(2, tmp_path / "run", *settings()))
    ended = ranks[0].wait()
    assert [each.code for each in ended] == [75, 75], ended
    assert "Stopped by SIGTERM after step" in ended[0].output
    assert published(tmp_path / "run" / "checkpoints")
    ended = train(2, tmp_path / "run", *settings())
    assert [each.code for each in ended] == [0, 0], ended
    assert_same_end(tmp_path / "run", taught[2][0])
    assert Counter(map(server.key, server.requests)) == taught[2][1]


def test_failures_are_retried_charged_and_change_nothing(
    train: Train, server: TeacherServer, settings: Settings,
    taught: dict[int, tuple[Path, Counter[str]]], tmp_path: Path,
) -> None:  # fmt: skip
    faults = {1: "429", 4: "500", 7: "hangs up", 9: "nonsense"}
    server.fault = lambda number, _: faults.get(number)
    ended = train(2, tmp_path / "run", *settings("teacher.retries=4"))
    assert [each.code for each in ended] == [0, 0], ended
    assert_same_end(tmp_path / "run", taught[2][0])
    assert len(server.requests) == taught[2][1].total() + len(faults)
    assert_sound(tmp_path / "run")


def test_a_row_without_an_answer_is_dropped_by_all(
    train: Train, server: TeacherServer, settings: Settings, tmp_path: Path
) -> None:
    few = settings("teacher.retries=0", "teacher.at_once=1")
    for size in (1, 2, 3):
        server.requests, server.fault = [], lambda number, _: "500" if number == 1 else None
        ended = train(size, tmp_path / str(size), *few)
        assert [each.code for each in ended] == [0] * size, ended
        assert_sound(tmp_path / str(size))
        assert len(steps_of(tmp_path / str(size))[0]["dropped"]) == 1
        if size > 1:
            assert_same_run(tmp_path / str(size), tmp_path / "1")


def test_the_spend_limit_stops_all_and_the_run_resumes(
    train: Train, server: TeacherServer, settings: Settings,
    taught: dict[int, tuple[Path, Counter[str]]], tmp_path: Path,
) -> None:  # fmt: skip
    run, price = tmp_path / "run", "teacher.price_per_million_tokens=1000"
    limit = Decimal(journal_of(taught[1][0]).tokens * 6 // 10) / 1000
    ended = train(2, run, *settings(price, f"teacher.spend_limit={limit}"))
    assert_ended(ended, 1, f"above the limit of {limit} (teacher.spend_limit)")
    assert 0 < journal_of(run).tokens * Decimal("0.001") <= limit
    assert published(run / "checkpoints")
    again = train(2, run, *settings(price, "teacher.spend_limit=9999"))
    assert [each.code for each in again] == [0, 0], again
    assert_same_end(run, taught[2][0])
    assert Counter(map(server.key, server.requests)) == taught[2][1]


def test_a_wrong_answer_is_the_sentence_of_all_and_teaches_nothing(
    train: Train, server: TeacherServer, settings: Settings, tmp_path: Path
) -> None:
    server.fault = lambda *_: "without log-probs"
    ended = train(2, tmp_path / "run", *settings())
    assert_ended(ended, 1, "answered without log-probs")
    assert not list((tmp_path / "run" / "teacher" / "answers").iterdir())
    assert not steps_of(tmp_path / "run")


def test_a_server_that_cannot_teach_is_refused_once(
    train: Train, server: TeacherServer, settings: Settings, tmp_path: Path
) -> None:
    ended = train(2, tmp_path / "run", *settings("teacher.model=another"))
    assert_ended(ended, 1, "serves 'a-teacher', not 'another'")
    assert len(server.headers) == 1
