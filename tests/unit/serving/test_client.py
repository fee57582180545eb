"""Requests to a server that answers, stalls, fails and misbehaves."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
import traceback
from typing import Any

import httpx2
import pytest
from serving_fixtures import Act, ChatServer, Play, fails, in_turn, says

from bas_opd.errors import ConfigError, PreemptionError
from bas_opd.serving import endpoint as endpoints
from bas_opd.serving.client import (
    AccessError,
    ChatClient,
    RefusedError,
    ServerError,
    Spending,
    SpendingLimitError,
)
from bas_opd.serving.endpoint import Endpoint, Reply

HELLO = [{"role": "user", "content": "Hello"}]
KEY = "sk-canary-8c1f0d2e77"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def ask(play: Play, **settings: Any) -> tuple[Reply, ChatServer]:
    with ChatServer(play).running() as server:
        return ChatClient(server.endpoint(**settings)).ask(HELLO, max_tokens=7), server


def failure(play: Play, **settings: Any) -> tuple[ServerError, ChatServer]:
    with ChatServer(play).running() as server:
        with pytest.raises(ServerError) as caught:
            ChatClient(server.endpoint(**settings)).ask(HELLO, max_tokens=7)
        return caught.value, server


def test_a_request_carries_its_settings_and_no_authorization_without_a_key() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    with ChatServer(in_turn("Hi")).running() as server:
        client = ChatClient(server.endpoint(extra=extra))
        reply = client.ask(HELLO, max_tokens=7, seed=42)
    decoding = {"temperature": 0, "max_tokens": 7, "seed": 42}
    assert server.requests == [{"model": "a-judge", "messages": HELLO, **decoding, **extra}]
    assert server.headers[0]["path"] == "/v1/chat/completions"
    assert "Authorization" not in server.headers[0]
    assert reply == Reply(text="Hi", finish="stop", tokens=11)


def test_a_reply_without_text_is_empty_and_says_how_it_ended() -> None:
    reply, _ = ask(in_turn(says(None, finish="length")))
    assert (reply.text, reply.finish) == ("", "length")


@pytest.mark.parametrize(
    "bad",
    [
        *(fails(status) for status in (408, 409, 429, 500, 502, 503, 529)),
        says("late", wait_seconds=20),
        says("slow", drip_seconds=0.05),
        says("cut short in the middle", keep_bytes=40),
        says("cut short", keep_bytes=40, says_length=False),
        Act(body=b"{not json"),
        Act(body=b""),
        Act(body=b"[]"),
        Act(body=b'{"choices": []}'),
        Act(body=b'{"choices": [{"message": {"content": 7}}]}'),
        Act(body=b"\xff\xfe" * 50),
        Act(body=b"[" * 200_000),
        Act(status=500, body=b"cut short in the middle", keep_bytes=3),
    ],
    ids=lambda act: f"{act.status}-{act.body[:12]!r}-{act.keep_bytes}-{act.wait_seconds}",
)
def test_a_temporary_failure_is_retried(bad: Act) -> None:
    is_slow = bad.wait_seconds or bad.drip_seconds
    reply, server = ask(in_turn(bad, "Hi"), timeout_seconds=1.0 if is_slow else 5.0)
    assert (reply.text, len(server.requests)) == ("Hi", 2)


def test_a_reply_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_REPLY_BYTES", 1000)
    error, _ = failure(in_turn(says("long " * 1000)), tries=2)
    assert "the last time it sent more than 1,000 bytes." in str(error)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_on_this_machine_is_asked_without_a_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ChatServer(in_turn("through a proxy")).running() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with ChatServer(in_turn("Hi")).running() as server:
            url = server.url.replace("127.0.0.1", host)
            assert ChatClient(server.endpoint(url=url)).ask(HELLO, max_tokens=7).text == "Hi"
        away = proxy.endpoint(url="http://model.example/v1")
        assert ChatClient(away).ask(HELLO, max_tokens=7).text == "through a proxy"


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1"])
def test_a_proxy_that_cannot_be_used_is_a_sentence(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    with pytest.raises(ConfigError, match=r"proxy for http://model\.example/v1 cannot be used"):
        ChatClient(Endpoint(url="http://model.example/v1", model="a"))


def test_a_proxy_for_other_addresses_and_a_missing_certificate_file_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with ChatServer(in_turn("through a proxy")).running() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        away = proxy.endpoint(url="http://model.example/v1")
        assert ChatClient(away).ask(HELLO, max_tokens=7).text == "through a proxy"


def test_a_cookie_is_never_sent_back() -> None:
    with ChatServer(in_turn(says("Hi", headers={"Set-Cookie": "a=1"}), "Ho")).running() as server:
        client = ChatClient(server.endpoint())
        for _ in range(2):
            client.ask(HELLO, max_tokens=7)
        assert len(server.headers) == 2
        assert not any("cookie" in {name.lower() for name in sent} for sent in server.headers)


def test_requests_of_one_client_share_a_connection() -> None:
    with ChatServer(in_turn("Hi")).running() as server:
        client = ChatClient(server.endpoint(at_once=2))
        assert [client.ask(HELLO, max_tokens=7).text for _ in range(3)] == ["Hi"] * 3
        assert len(server.connections) == 1
        list(client.in_parallel(lambda n: echo(client, n), range(20)))
    assert len(server.requests) == 23
    assert len(server.connections) <= 3


def test_a_connection_whose_reply_was_given_up_is_not_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "MAX_REPLY_BYTES", 1000)
    with ChatServer(in_turn(says("long " * 10_000), "Hi")).running() as server:
        assert ChatClient(server.endpoint()).ask(HELLO, max_tokens=7).text == "Hi"
    assert len(server.connections) == 2


@pytest.mark.parametrize("headers", [False, True])
def test_a_reply_that_trickles_ends_at_the_deadline(headers: bool) -> None:
    started = time.monotonic()
    slow = says("slow", drip_seconds=0.05, drips_headers=headers)
    error, _ = failure(in_turn(slow), timeout_seconds=0.5, tries=1)
    assert "time" in str(error)
    assert time.monotonic() - started < 2


def test_a_library_that_has_no_place_for_that_deadline_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(httpx2.HTTPTransport, "__init__", lambda self, **_: None)
    endpoints._warn_of_long_replies.cache_clear()
    for _ in range(2):
        endpoints.open_http(Endpoint(url="http://127.0.0.1:9/v1", model="m"))
    endpoints._warn_of_long_replies.cache_clear()
    (record,) = caplog.records
    assert "have no timeout with httpx2" in record.message


def test_a_connection_that_is_used_again_has_its_whole_time_again() -> None:
    with ChatServer(in_turn(says("Hi", wait_seconds=0.6))).running() as server:
        client = ChatClient(server.endpoint(timeout_seconds=1.0, tries=1))
        assert [client.ask(HELLO, max_tokens=7).text for _ in range(3)] == ["Hi"] * 3
        assert len(server.connections) == 1


def test_a_large_request_arrives_whole() -> None:
    content = "".join(map(str, range(200_000)))
    with ChatServer(in_turn("Hi")).running() as server:
        long = [{"role": "user", "content": content}]
        assert ChatClient(server.endpoint()).ask(long, max_tokens=7).text == "Hi"
    assert server.requests[0]["messages"] == long


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://model.example/v1", True),
        ("http://10.0.0.7:8000/v1", True),
        ("https://model.example/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.2/v1", False),
        ("http://[::1]:8000/v1", False),
    ],
)
def test_a_key_over_plain_http_to_another_host_gets_one_warning(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    endpoints._warn_of_open_key.cache_clear()
    for _ in range(2):
        Endpoint(url=url, model="a", key_variable="SOME_KEY")
    Endpoint(url=url, model="a")
    assert len(caplog.messages) == warned
    assert all("over plain http" in each and "SOME_KEY" in each for each in caplog.messages)


def test_a_compressed_reply_is_neither_asked_for_nor_unpacked() -> None:
    bomb = gzip.compress(says("0" * 10_000_000).body)
    packed = Act(body=bomb, headers={"Content-Encoding": "gzip"})
    error, server = failure(in_turn(packed), tries=1)
    assert "no chat completion" in str(error)
    assert server.headers[0]["Accept-Encoding"] == "identity"


def test_there_are_no_more_tries_than_allowed() -> None:
    error, server = failure(in_turn(fails(503, "overloaded")), tries=4)
    assert len(server.requests) == 4
    assert "no usable reply in 4 tries" in str(error)
    assert "status 503: overloaded" in str(error)


def test_a_server_that_is_not_there_is_a_sentence() -> None:
    with ChatServer(in_turn("Hi")).running() as server:
        endpoint = server.endpoint(tries=2)
    with pytest.raises(ServerError, match="could not be reached") as caught:
        ChatClient(endpoint).ask(HELLO, max_tokens=7)
    assert "Check that the server is up" in str(caught.value)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (says("late", wait_seconds=20), "it did not finish its reply within 0.5 s. Check"),
        (says("slow", drip_seconds=0.05), "it did not finish its reply within 0.5 s. Check"),
        (says("cut short", keep_bytes=40), "it broke off the connection ("),
        (says("nothing", keep_bytes=0), "it broke off the connection ("),
    ],
)
def test_a_reply_that_does_not_end_is_not_told_as_a_server_that_is_not_there(
    act: Act, words: str
) -> None:
    error, _ = failure(in_turn(act), timeout_seconds=0.5, tries=1)
    assert words in str(error)
    assert "reached" not in str(error)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_refused_is_not_sent_again(status: int) -> None:
    error, server = failure(in_turn(fails(status, "too long")))
    assert len(server.requests) == 1
    assert isinstance(error, RefusedError)
    assert f"status {status}: too long" in str(error)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405])
def test_a_status_that_no_request_can_pass_is_an_access_error(status: int) -> None:
    error, server = failure(in_turn(fails(status)))
    assert len(server.requests) == 1
    assert isinstance(error, AccessError)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    with ChatServer(in_turn("Hi")).running() as other:
        leads_away = fails(status, Location=f"{other.url}/chat/completions")
        error, server = failure(in_turn(leads_away), key_variable="A_KEY")
    assert isinstance(error, AccessError)
    assert (len(server.requests), other.requests) == (1, [])


def test_waits_double_with_some_chance_in_them_up_to_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return 0.0

    monkeypatch.setattr("bas_opd.serving.client.random.uniform", uniform)
    failure(in_turn(fails(500)), tries=6, first_wait_seconds=1.0, longest_wait_seconds=6.0)
    assert bounds == [(0.5, 1), (1, 2), (2, 4), (3, 6), (3, 6)]


def test_retry_after_is_honoured() -> None:
    started = time.monotonic()
    ask(in_turn(fails(429, Retry_After="0.4"), "Hi"))
    assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize("value", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_retry_after_beyond_the_longest_wait_ends_the_request(value: str) -> None:
    _, server = failure(in_turn(fails(429, Retry_After=value)))
    assert len(server.requests) == 1


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "soon", "", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_an_unreadable_retry_after_is_ignored(value: str) -> None:
    _, server = ask(in_turn(fails(429, Retry_After=value), "Hi"))
    assert len(server.requests) == 2


def picky(*rejected: str, message: str = "Unsupported: '{}'", named: bool = True) -> Play:
    def play(request: dict[str, Any]) -> Act | str:
        for name in rejected:
            if name in request:
                return fails(400, message.format(name), param=name if named else None)
        return "Hi"

    return play


@pytest.mark.parametrize("named", [True, False])
def test_a_rejected_parameter_is_left_out_or_renamed_and_recorded(named: bool) -> None:
    with ChatServer(picky("max_tokens", "temperature", named=named)).running() as server:
        client = ChatClient(server.endpoint(tries=1))
        reply = client.ask(HELLO, max_tokens=7, seed=42)
        again = client.ask(HELLO, max_tokens=7, seed=42)
    assert len(server.requests) == 4, "what was rejected once is not sent again"
    assert (server.requests[-1]["max_completion_tokens"], server.requests[-1]["seed"]) == (7, 42)
    assert not {"max_tokens", "temperature"} & set(server.requests[-1])
    assert reply.fallbacks == again.fallbacks
    assert reply.fallbacks == (
        "sent max_completion_tokens in place of max_tokens",
        "sent without temperature",
    )


FORBIDDEN = {
    "type": "extra_forbidden",
    "loc": ["body", "seed"],
    "msg": "Extra inputs are not permitted",
}


@pytest.mark.parametrize(
    "refusal",
    [
        fails(400, "Unsupported parameter", param="seed"),
        fails(422, "seed: Extra inputs are not permitted"),
        Act(status=422, body=json.dumps({"detail": [FORBIDDEN]}).encode()),
    ],
)
def test_a_server_that_rejects_the_seed_is_asked_without_it_and_that_is_recorded(
    refusal: Act,
) -> None:
    with ChatServer(lambda request: refusal if "seed" in request else "Hi").running() as server:
        reply = ChatClient(server.endpoint(tries=1)).ask(HELLO, max_tokens=7, seed=42)
    assert (server.requests[-1]["temperature"], server.requests[-1]["max_tokens"]) == (0, 7)
    assert reply.fallbacks == ("sent without seed",)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("You asked 'what is the temperature?' in more than 4096 tokens.", None),
        ("'messages' is unsupported, not the temperature", "messages"),
        ("max_tokens is 7, and seed is unsupported", "seed"),
    ],
)
def test_another_complaint_leaves_the_temperature_alone(message: str, param: str | None) -> None:
    _, server = failure(in_turn(fails(400, message, param=param)))
    assert [request["temperature"] for request in server.requests] == [0]


def test_a_server_that_is_down_changes_no_parameter_whatever_it_names() -> None:
    reply, server = ask(in_turn(fails(500, param="temperature"), "Hi"))
    assert [request["temperature"] for request in server.requests] == [0, 0]
    assert reply.fallbacks == ()


def test_a_server_that_rejects_everything_is_given_up() -> None:
    _, server = failure(picky("temperature", "max_tokens", "max_completion_tokens"))
    assert len(server.requests) == 3


def test_the_key_is_sent_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("A_KEY", f"{KEY}\n")
    echo = json.dumps({"error": {"message": f"The key {KEY} is bad"}}).encode()
    acts = [
        says(f"Your key is {KEY}", finish=KEY),
        Act(status=400, body=echo),
        Act(status=401, body=KEY.encode() * 100),
        Act(status=500, body=echo, headers={"Retry-After": KEY}),
        Act(body=echo),
    ]
    shown = ""
    with ChatServer(in_turn(*acts)).running() as server:
        client = ChatClient(server.endpoint(key_variable="A_KEY", tries=1))
        shown += repr(client.ask(HELLO, max_tokens=7))
        for _ in acts[1:]:
            with pytest.raises(ServerError) as caught:
                client.ask(HELLO, max_tokens=7)
            shown += "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        shown += repr(client.endpoint) + repr(vars(client)) + repr(client.endpoint.key())
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert "[key]" in shown
    assert KEY not in shown + caplog.text + "".join(capfd.readouterr())


def test_a_key_too_short_to_be_secret_spoils_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "EMPTY")
    reply, _ = ask(in_turn("The glass is EMPTY"), key_variable="A_KEY")
    assert reply.text == "The glass is EMPTY"


@pytest.mark.parametrize("value", ["", "  ", f"{KEY}\r\nX-Other: {KEY}", f"{KEY}é"])
def test_a_key_that_cannot_be_used_is_a_sentence_without_it(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", value)
    with (
        ChatServer(in_turn("Hi")).running() as server,
        pytest.raises(ConfigError, match="A_KEY") as caught,
    ):
        ChatClient(server.endpoint(key_variable="A_KEY")).ask(HELLO, max_tokens=7)
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert server.requests == []


@pytest.mark.parametrize(
    "settings",
    [
        {"url": f"http://me:{KEY}@127.0.0.1/v1"},
        {"url": f"http://127.0.0.1/v1?key={KEY}"},
        {"url": f"http://127.0.0.1/v1#{KEY}"},
        {"url": f"http://[{KEY}/v1"},
        {"url": "file:///etc/passwd"},
        {"url": "127.0.0.1:8000"},
        {"url": "http:///v1"},
        {"key_variable": KEY},
        {"key_variable": "gsk_" + "a1" * 20},
        {"extra": {"temperature": 1}},
        {"extra": {"messages": []}},
        {"at_once": 0},
        {"tries": 0},
        {"timeout_seconds": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused_and_not_shown(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(**{"url": "http://127.0.0.1/v1", "model": "a", **settings})
    assert KEY not in str(caught.value)
    assert "a1a1" not in str(caught.value)


def test_the_spending_limit_counts_failed_requests_too() -> None:
    with ChatServer(in_turn(fails(500), fails(500), "Hi")).running() as server:
        spending = Spending(max_requests=2)
        with pytest.raises(SpendingLimitError, match="2 requests"):
            ChatClient(server.endpoint(), spending=spending).ask(HELLO, max_tokens=7)
    assert len(server.requests) == spending.requests == 2


def test_the_spending_limit_counts_tokens_as_the_server_does() -> None:
    with ChatServer(in_turn("Hi")).running() as server:
        client = ChatClient(server.endpoint(), spending=Spending(max_tokens=12))
        client.ask(HELLO, max_tokens=7)
        client.ask(HELLO, max_tokens=7)
        with pytest.raises(SpendingLimitError, match="12 tokens"):
            client.ask(HELLO, max_tokens=7)
    assert (len(server.requests), client.spending.tokens) == (2, 22)


def test_the_spending_limit_counts_what_earlier_commands_spent() -> None:
    spending = Spending(max_requests=3, max_tokens=100)
    spending.add(requests=2, tokens=99)
    spending.reserve()
    with pytest.raises(SpendingLimitError, match=r"3 requests .* earlier commands included"):
        spending.reserve()
    tokens = Spending(max_tokens=100)
    tokens.add(requests=9, tokens=100)
    with pytest.raises(SpendingLimitError, match="100 tokens"):
        tokens.reserve()


@pytest.mark.parametrize(
    "usage", ["many", {"prompt_tokens": -9, "completion_tokens": 1}, {"prompt_tokens": 3}, [1]]
)
def test_without_an_honest_count_every_byte_is_a_token(usage: Any) -> None:
    reply, server = ask(in_turn(says("Hi", usage=usage)))
    assert reply.tokens > len(json.dumps(server.requests[0])) > 100


def test_work_runs_in_parallel_within_the_limit_and_keeps_its_indices() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def play(request: dict[str, Any]) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return f"re: {request['messages'][0]['content']}"

    with ChatServer(play).running() as server:
        client = ChatClient(server.endpoint(at_once=3))
        got = dict(client.in_parallel(lambda n: echo(client, n), range(10)))
    assert got == {place: f"re: {place}" for place in range(10)}
    assert most == 3


def echo(client: ChatClient, number: int) -> str:
    return client.ask([{"role": "user", "content": str(number)}], max_tokens=7).text


def test_items_are_not_taken_before_their_turn() -> None:
    taken: list[int] = []

    def items() -> Any:
        for number in range(100):
            taken.append(number)
            yield number

    with ChatServer(in_turn("Hi")).running() as server:
        client = ChatClient(server.endpoint(at_once=2))
        results = client.in_parallel(lambda n: echo(client, n), items())
        next(results)
        results.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(taken) <= 4


@pytest.mark.parametrize("stop", [PreemptionError("SIGTERM"), KeyboardInterrupt()])
def test_a_stop_yields_requests_in_flight_and_sends_no_more(
    stop: BaseException,
) -> None:
    with ChatServer(in_turn(says("Hi", wait_seconds=0.4))).running() as server:
        client = ChatClient(server.endpoint(at_once=2))

        def poll() -> None:
            if len(server.requests) == 2:
                raise stop

        got: list[int] = []
        with pytest.raises(type(stop)):
            got.extend(
                place
                for place, _ in client.in_parallel(lambda n: echo(client, n), range(9), poll=poll)
            )
    assert sorted(got) == [0, 1]
    assert len(server.requests) == 2


def test_a_stop_interrupts_a_long_wait() -> None:
    with ChatServer(in_turn(fails(429, Retry_After="50"))).running() as server:
        client = ChatClient(server.endpoint())

        def poll() -> None:
            if server.requests:
                raise PreemptionError("SIGTERM")

        started = time.monotonic()
        with pytest.raises(PreemptionError):
            list(client.in_parallel(lambda n: echo(client, n), range(3), poll=poll))
    assert time.monotonic() - started < 5


def slow_at_zero(request: dict[str, Any]) -> Act:
    is_slow = request["messages"][0]["content"] == "0"
    return says("Hi", wait_seconds=30 if is_slow else 0.4)


def test_a_stop_waits_for_requests_in_flight_no_longer_than_it_may() -> None:
    with ChatServer(slow_at_zero).running() as server:
        client = ChatClient(server.endpoint(at_once=2, timeout_seconds=20, stop_seconds=1.0))

        def poll() -> None:
            if len(server.requests) == 2:
                raise PreemptionError("SIGTERM")

        got, started = list[int](), time.monotonic()
        with pytest.raises(PreemptionError):
            got.extend(
                place
                for place, _ in client.in_parallel(lambda n: echo(client, n), range(9), poll=poll)
            )
        assert time.monotonic() - started < 5
        assert got == [1], "What arrives within that time counts."
        assert len(server.requests) == 2
        assert echo(client, 5) == "Hi", "the client can be used again"


def test_a_stop_after_a_failure_waits_no_longer_either() -> None:
    def play(request: dict[str, Any]) -> Act:
        while len(server.requests) < 2:
            time.sleep(0.001)
        return slow_at_zero(request) if request["messages"][0]["content"] == "0" else fails(404)

    polls = 0

    def poll() -> None:
        nonlocal polls
        polls += len(server.requests) == 2
        if polls == 6:
            raise PreemptionError("SIGTERM")

    started = time.monotonic()
    with ChatServer(play).running() as server:
        client = ChatClient(server.endpoint(at_once=2, timeout_seconds=20, stop_seconds=0.2))
        with pytest.raises(AccessError):
            list(client.in_parallel(lambda n: echo(client, n), range(2), poll=poll))
    assert time.monotonic() - started < 6


def test_a_failure_of_one_is_raised_after_the_results_of_the_others() -> None:
    def play(request: dict[str, Any]) -> Act | str:
        if request["messages"][0]["content"] != "0":
            return says("Hi", wait_seconds=0.3)
        while len(server.requests) < 3:
            time.sleep(0.001)
        return fails(404)

    got: list[int] = []
    with ChatServer(play).running() as server:
        client = ChatClient(server.endpoint(at_once=3))
        with pytest.raises(AccessError):
            got.extend(
                place for place, _ in client.in_parallel(lambda n: echo(client, n), range(9))
            )
        assert sorted(got) == [1, 2]
        assert echo(client, 5) == "Hi", "the client can be used again"
