"""An evaluation whose model, judge or process fails, misbehaves or costs money."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import png, stored, write_parquet
from failing_calls import KINDS, FailingCall, count_calls
from judge_fixtures import INJECTIONS, read, strict
from process import Ended, Fault, at, bas_opd, die
from safetensors.torch import load_file, save_file
from serving_fixtures import Act, ChatServer, Play, fails, in_turn, says

from bas_opd.evaluate import evaluation as evaluations
from bas_opd.evaluate.evaluation import Evaluation
from bas_opd.evaluate.judge import Judge, VerdictCache
from bas_opd.evaluate.samples import OUTPUTS, SCORES, AppendedLines
from bas_opd.serving import endpoint as endpoints
from bas_opd.serving.client import ChatClient
from bas_opd.serving.endpoint import Endpoint

# Newer versions of Python warn of a fork beside the server's threads, which hold nothing here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

N = 12
AT_ONCE = Endpoint(url="http://localhost", model="any").at_once
MODEL, JUDGE = "a-model", "a-judge"
KEY = "sk-canary-8c1f0d2e77"
TORN = '{"key":"0123456789abcdef'
REPORTS = ("report.md", "report.tex", "report.json")

BEFORE_SCORES = at(evaluations, "write_samples", die, call=1, before=True)

Evaluate = Callable[..., Ended]
"""`evaluate(out, *options, fault=None)`: one `bas-opd eval` from its beginning to its end."""


def number(text: str) -> int:
    """Which sign a question or an answer is about."""
    return int(text.split("sign ")[1].split()[0])


def question(request: dict[str, Any]) -> str:
    _, text = request["messages"][0]["content"]
    return text["text"]


def both(answer: Callable[[int], Act | str], verdict: Play) -> Play:
    """A model that answers by the number of the question, and a judge."""

    def play(request: dict[str, Any]) -> Act | str:
        is_model = request["model"] == MODEL
        return answer(number(question(request))) if is_model else verdict(request)

    return play


def unclear(sign: int) -> str:
    """An answer that no rule can read."""
    return f"On sign {sign} both A and B could be meant."


def judged(request: dict[str, Any]) -> str:
    return "Yes" if number(read(request).answer) % 3 == 0 else "No"


CALM = both(unclear, judged)


def impatient() -> None:
    """Wait milliseconds where a server would be given minutes."""
    hasty: Any = partial(Endpoint, first_wait_seconds=0.001, timeout_seconds=1.5)
    endpoints.Endpoint = hasty


def asking(n: int, folder: Path) -> Path:
    """So many questions in ZoomBench's layout, the right answer always A."""
    prompts = [f"What does sign {sign} say?\nA. STOP\nB. GO" for sign in range(n)]
    rows = [{"query": prompt, "response": "A", "image": stored(png())} for prompt in prompts]
    write_parquet(folder / "data/test.parquet", rows)
    return folder


def evaluation(who: object, folder: Path, *ways: object) -> Evaluate:
    words = ("eval", who, "--bench", "zoombench", "--data", f"zoombench={folder}", "--partial")

    def run_to_its_end(out: Path, *options: object, fault: Fault | None = None) -> Ended:
        return bas_opd(*words, *ways, "--out", out, *options, fault=fault)

    return run_to_its_end


def behind(server: ChatServer, folder: Path) -> Evaluate:
    """Model and judge answer over the network."""
    model = ("--server", server.url, "--server-weights", "step 100", "--batch", AT_ONCE)
    return evaluation(MODEL, folder, *model, "--judge", server.url, "--judge-model", JUDGE)


def here(model: Path, folder: Path) -> Evaluate:
    """A model answers in the process itself, some questions at a time, and nobody judges."""
    return evaluation(model, folder, "--device", "cpu", "--max-response-tokens", 4, "--batch", 5)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asking(N, tmp_path_factory.mktemp("zoombench"))


@pytest.fixture(scope="module")
def running() -> Iterator[ChatServer]:
    with pytest.MonkeyPatch.context() as patch, ChatServer(CALM).running() as server:
        patch.setenv("no_proxy", "127.0.0.1")
        yield server


@pytest.fixture
def server(running: ChatServer, served_whole: Path) -> ChatServer:
    """A model and a judge behind one address, both healthy until a test says otherwise."""
    running.play = CALM
    running.requests.clear()
    running.headers.clear()
    return running


@pytest.fixture
def served(server: ChatServer, questions: Path) -> Evaluate:
    return behind(server, questions)


@pytest.fixture(scope="module")
def served_whole(
    running: ChatServer, questions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What is left of an evaluation over the network that nothing happened to."""
    return finished(behind(running, questions), tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def local_whole(model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of an evaluation in the process that nothing happened to."""
    return finished(here(model, questions), tmp_path_factory.mktemp("local"))


def finished(evaluate: Evaluate, out: Path, *options: object, fault: Fault | None = None) -> Path:
    ended = evaluate(out, *options, fault=fault)
    assert ended.code == 0, ended.output
    return out


def lines(path: Path) -> list[str]:
    """The lines of a file, in no order, but for one that a crash cut short."""
    text = path.read_text() if path.exists() else ""
    return sorted(line for line in text.splitlines() if not line.startswith(TORN))


def assert_same_end(out: Path, whole: Path) -> None:
    """Every answer, verdict and score once, and the same report."""
    for name in (f"zoombench/{OUTPUTS}", f"zoombench/{SCORES}", "verdicts.jsonl"):
        assert lines(out / name) == lines(whole / name)
    assert_same_report(out, whole)
    assert not list(out.rglob(".*"))


def assert_same_report(out: Path, other: Path) -> None:
    """The same scores, perhaps beside those of others, and the same tables."""
    scores = f"zoombench/{SCORES}"
    assert set(lines(out / scores)) >= set(lines(other / scores))
    for name in REPORTS:
        assert (out / name).read_bytes() == (other / name).read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a report says of its answers; the others are wrong."""

    correct: int
    unscored: int = 0


def result(out: Path) -> Result:
    (summary,) = json.loads((out / "report.json").read_text())["benchmarks"]
    return Result(correct=summary["primary"]["correct"], unscored=summary["unscored"])


def asked_for(server: ChatServer, model: str) -> int:
    return sum(request["model"] == model for request in server.requests)


def torn(owner: Any, method: str, *, call: int) -> Fault:
    """Die in the middle of the n-th write."""

    def arm() -> None:
        write, calls = getattr(owner, method), 0

        def half(store: Any, *args: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == call:
                store._file.write(TORN.encode())
                die()
            write(store, *args)

        setattr(owner, method, half)

    return arm


# 429, 500, timeout


def test_a_server_that_fails_for_a_while_changes_nothing(
    server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    bad = [
        fails(429, Retry_After="0.01"),
        fails(500),
        says("A", wait_seconds=3.0),
        says("A", keep_bytes=40),
        Act(body=b"<html>Bad gateway</html>"),
    ]

    def failing_first(request: dict[str, Any]) -> Act | str:
        is_model = request["model"] == MODEL
        about = question(request) if is_model else read(request).answer
        seen[about] += 1
        return bad[number(about) % len(bad)] if seen[about] == 1 else CALM(request)

    server.play = failing_first
    finished(served, tmp_path, fault=impatient)
    assert set(seen.values()) == {2}
    assert_same_end(tmp_path, served_whole)


@pytest.mark.parametrize("down", [fails(503, "overloaded"), says("A", keep_bytes=9)])
def test_a_model_that_is_gone_stops_it_and_it_resumes_later(
    down: Act, server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    server.play = both(lambda sign: down if sign >= 4 else unclear(sign), judged)
    ended = served(tmp_path, fault=impatient)
    assert ended.is_explained(1, "gave no usable reply in 6 tries"), ended
    assert "run the same command again" in ended.output
    assert asked_for(server, JUDGE) == 0
    kept = lines(tmp_path / "zoombench" / OUTPUTS)
    assert len(kept) == 4
    server.play = CALM
    server.requests.clear()
    finished(served, tmp_path)
    assert asked_for(server, MODEL) == N - len(kept)
    assert_same_end(tmp_path, served_whole)


def test_a_judge_that_is_gone_leaves_answers_unscored_and_they_are_judged_later(
    server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    server.play = both(unclear, in_turn(fails(500, "out of order")))
    ended = served(tmp_path, fault=impatient)
    assert ended.code == 0, ended.output
    assert "answers to ZoomBench have no verdict" in ended.output
    assert "status 500: out of order" in ended.output
    assert result(tmp_path) == Result(correct=0, unscored=N)
    server.play = CALM
    finished(served, tmp_path)
    assert asked_for(server, MODEL) == N
    assert_same_end(tmp_path, served_whole)


# Malformed verdict


def test_what_is_no_verdict_is_neither_right_nor_wrong_and_costs_no_other_verdict(
    server: ChatServer, served: Evaluate, tmp_path: Path
) -> None:
    malformed = {
        1: "Yes, because the sign says STOP.",
        2: "",
        5: '{"verdict": "Yes"}',
        7: says("Yes", finish="length"),
    }

    def verdict(request: dict[str, Any]) -> Act | str:
        return malformed.get(number(read(request).answer), judged(request))

    server.play = both(unclear, verdict)
    ended = served(tmp_path)
    assert ended.code == 0, ended.output
    assert f"{len(malformed)} of {N} answers to ZoomBench have no verdict: None" in ended.output
    assert result(tmp_path) == Result(correct=4, unscored=4)
    assert asked_for(server, JUDGE) == N + 2 * len(malformed)
    assert "33.3% unscored" in (tmp_path / "report.md").read_text()
    server.requests.clear()
    finished(served, tmp_path)
    assert {number(read(request).answer) for request in server.requests} <= malformed.keys()
    assert result(tmp_path) == Result(correct=4, unscored=4)


# Injections


def test_no_answer_talks_the_judge_into_a_grade(server: ChatServer, tmp_path: Path) -> None:
    # A server's reply is UTF-8, which has no lone surrogates.
    sendable = [text for text in INJECTIONS if text.encode(errors="ignore").decode() == text]
    served = behind(server, asking(len(sendable), tmp_path / "questions"))
    server.play = both(lambda sign: sendable[sign], strict)
    out = finished(served, tmp_path / "out")
    assert result(out) == Result(correct=0)
    cases = [read(request) for request in server.requests if request["model"] == JUDGE]
    assert {case.answer for case in cases} <= set(sendable)
    assert len(cases) >= 30


# Kill at sample n


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(at(AppendedLines, "append", die, call=1), id="at the first answer"),
        pytest.param(at(AppendedLines, "append", die, call=4), id="within a batch"),
        pytest.param(at(AppendedLines, "append", die, call=5), id="at the end of a batch"),
        pytest.param(torn(AppendedLines, "append", call=8), id="in the middle of a line"),
        pytest.param(at(AppendedLines, "append", die, call=N), id="at the last answer"),
        pytest.param(BEFORE_SCORES, id="before the scores are there"),
        pytest.param(at(Evaluation, "score", die, call=1), id="before the report"),
    ],
)
def test_killed_it_keeps_every_answer_of_a_model_and_asks_for_the_others(
    fault: Fault, model: Path, questions: Path, local_whole: Path, tmp_path: Path
) -> None:
    local = here(model, questions)
    assert local(tmp_path, fault=fault).code == -9
    kept = lines(tmp_path / "zoombench" / OUTPUTS)
    assert kept
    finished(local, tmp_path)
    after = (tmp_path / "zoombench" / OUTPUTS).read_text().splitlines()
    assert sorted(after[: len(kept)]) == kept
    assert_same_end(tmp_path, local_whole)


@pytest.mark.parametrize("share", range(6))
def test_any_call_to_the_disk_may_fail_and_it_ends_the_same_later(
    share: int, model: Path, questions: Path, local_whole: Path, tmp_path: Path
) -> None:
    local, out = here(model, questions), tmp_path / "out"
    calls = count_calls(lambda fault: local(tmp_path / "counted", fault=fault))
    ended = local(out, fault=FailingCall(1 + share * calls // 6, KINDS[share]))
    assert "Traceback" not in ended.output, ended.output
    finished(local, out)
    assert_same_end(out, local_whole)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(at(AppendedLines, "append", die, call=1), id="at the first answer"),
        pytest.param(torn(AppendedLines, "append", call=5), id="in the middle of an answer"),
        pytest.param(at(AppendedLines, "append", die, call=N), id="at the last answer"),
        pytest.param(at(VerdictCache, "add", die, call=1), id="at the first verdict"),
        pytest.param(torn(VerdictCache, "add", call=6), id="in the middle of a verdict"),
        pytest.param(at(VerdictCache, "add", die, call=N), id="at the last verdict"),
        pytest.param(BEFORE_SCORES, id="before the scores are there"),
    ],
)
def test_killed_it_neither_sends_nor_pays_twice_for_what_is_saved(
    fault: Fault, server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    assert served(tmp_path, fault=fault).code == -9
    answered = {json.loads(line)["id"] for line in lines(tmp_path / "zoombench" / OUTPUTS)}
    paid = {json.loads(line)["key"] for line in lines(tmp_path / "verdicts.jsonl")}
    assert answered
    lost = len(server.requests) - len(answered) - len(paid)
    assert lost <= AT_ONCE, "no more is lost than was under way"
    finished(served, tmp_path)
    assert_same_end(tmp_path, served_whole)

    with VerdictCache(tmp_path / "any.jsonl") as cache:
        key = Judge(ChatClient(Endpoint(url=server.url, model=JUDGE)), cache).key
        times = Counter(
            f"test-{number(question(request)) + 1}"
            if request["model"] == MODEL
            else key(read(request))
            for request in server.requests
        )
    assert len(times) == 2 * N
    assert {times[name] for name in answered | paid} == {1}


# Same cache, other weights


def test_a_model_that_differs_in_one_number_never_gets_the_answers_of_another(
    model: Path, questions: Path, local_whole: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    alone = finished(here(other, questions), tmp_path / "alone")

    shared = shutil.copytree(local_whole, tmp_path / "shared")
    finished(here(other, questions), shared)
    outputs = lines(shared / "zoombench" / OUTPUTS)
    expected = [line for out in (local_whole, alone) for line in lines(out / "zoombench" / OUTPUTS)]
    assert outputs == sorted(expected)
    assert_same_report(shared, alone)

    finished(here(model, questions), shared)
    assert lines(shared / "zoombench" / OUTPUTS) == outputs, "nothing is asked again"
    assert_same_report(shared, local_whole)


def test_weights_of_another_name_behind_the_same_address_never_get_these_answers(
    server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    shared = shutil.copytree(served_whole, tmp_path / "shared")
    server.play = both(lambda _: "A", judged)
    finished(served, shared, "--server-weights", "step 200")
    assert asked_for(server, MODEL) == N
    assert result(shared) == Result(correct=N)
    finished(served, shared)
    assert asked_for(server, MODEL) == N
    assert result(shared) == result(served_whole)


# Same cache, other judge


def test_another_judge_never_reuses_a_verdict_or_a_score(
    server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    shared = shutil.copytree(served_whole, tmp_path / "shared")
    with ChatServer(in_turn("Yes")).running() as elsewhere:
        named = ("--judge-model", "another-judge")
        moved = ("--judge", elsewhere.url)
        for other in (named, moved):
            ended = served(shared, *other, "--only", "report")
            assert ended.is_explained(1, "or one of another model, set, parser or judge"), ended
        server.play = in_turn("No")
        finished(served, shared, *named)
        assert result(shared) == Result(correct=0)
        finished(served, shared, *moved)
        assert result(shared) == Result(correct=N)
        assert len(elsewhere.requests) == N
    assert asked_for(server, "another-judge") == N
    assert asked_for(server, MODEL) == asked_for(server, JUDGE) == 0
    finished(served, shared)
    assert asked_for(server, JUDGE) == 0
    assert_same_report(shared, served_whole)


# Key canary


def test_the_key_is_in_no_byte_that_is_written_or_printed(
    server: ChatServer, served: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a server does with it: it may answer, grade, end or refuse with it."""
    monkeypatch.setenv("A_KEY", KEY)
    keys = ("--server-key", "A_KEY", "--judge-key", "A_KEY")
    echo = f"Authorization: Bearer {KEY}"
    printed = ""

    server.play = both(lambda sign: says(f"On sign {sign} A and B. {echo}", finish=KEY), judged)
    printed += served(tmp_path, *keys, "--only", "generate", fault=impatient).output
    assert "[key]" in (tmp_path / "zoombench" / OUTPUTS).read_text()
    plain = Act(status=400, body=echo.encode())
    refusals = in_turn(echo, fails(500, echo), plain, fails(403, echo))
    server.play = both(unclear, refusals)
    printed += served(tmp_path, *keys, fault=impatient).output
    assert "[key]" in printed
    server.play = both(lambda _: fails(401, echo), judged)
    ended = served(tmp_path, *keys, "--server-weights", "others", fault=impatient)
    assert ended.is_explained(1, "Check the address"), ended
    monkeypatch.setenv("BAS_OPD_DEBUG", "1")
    traced = served(tmp_path, *keys, "--server-weights", "others", fault=impatient)
    assert "Traceback" in traced.output

    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in server.headers)
    assert KEY not in printed + ended.output + traced.output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert tmp_path / "verdicts.jsonl" in files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


# Spending ceiling


def test_at_the_spending_limit_it_stops_says_so_and_resumes_later(
    server: ChatServer, served: Evaluate, served_whole: Path, tmp_path: Path
) -> None:
    ended = served(tmp_path, "--judge-requests", 5)
    assert ended.code == 0, ended.output
    said = f"{N - 5} of {N} answers to ZoomBench have no verdict: The limit of 5 requests"
    assert said in ended.output
    assert asked_for(server, JUDGE) == 5
    assert result(tmp_path).unscored == N - 5
    finished(served, tmp_path, "--judge-requests", N)
    assert asked_for(server, JUDGE) == asked_for(server, MODEL) == N
    assert_same_end(tmp_path, served_whole)
