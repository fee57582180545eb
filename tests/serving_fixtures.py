"""A chat-completions server on this machine that behaves as each test says, well or badly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bas_opd.serving.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Act:
    """What the server does with one request."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    keep_bytes: int | None = None
    """Close the connection after this many bytes of the body."""
    says_length: bool = True
    wait_seconds: float = 0.0
    drip_seconds: float = 0.0
    """Wait this long after each byte of the body."""
    drips_headers: bool = False
    """Wait after each line of endless headers instead."""


def says(text: str | None, *, finish: str | None = "stop", usage: Any = None, **more: Any) -> Act:
    """A completion as servers send it."""
    message = {"role": "assistant", "content": text}
    completion = {
        "id": "chat-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage or {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
    }
    return Act(body=json.dumps(completion).encode(), **more)


def fails(status: int, message: str = "no", *, param: str | None = None, **headers: str) -> Act:
    """An error as servers send it; `Retry_After` is a header."""
    error = {"message": message, "type": "error", "param": param, "code": None}
    return Act(
        status=status,
        body=json.dumps({"error": error}).encode(),
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


Play = Callable[[dict[str, Any]], Act | str]


@contextmanager
def served(http: ThreadingHTTPServer, closing: threading.Event) -> Iterator[None]:
    """Answer requests in a thread as long as the context lasts; `closing` ends what waits."""
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        http.shutdown()
        http.server_close()
        thread.join()


class ChatServer:
    """Records requests and answers them as `play` says."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[Any] = set()
        """The client's address of each connection that carried a request."""
        self.closing = threading.Event()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator[ChatServer]:
        with served(self._http, self.closing):
            yield self

    def endpoint(self, **settings: Any) -> Endpoint:
        """Return this server's endpoint, with short waits."""
        little: dict[str, Any] = {"timeout_seconds": 5.0, "first_wait_seconds": 0.001}
        return Endpoint(**{"url": self.url, "model": "a-judge", **little, **settings})


def in_turn(*acts: Act | str) -> Play:
    """Play these one after another, and the last one from then on."""
    left = list(acts)
    lock = threading.Lock()

    def play(_: dict[str, Any]) -> Act | str:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return play


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, as some tests do."""


def _handler(server: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # which keeps connections open

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers.append({**self.headers, "path": self.path})
            server.requests.append(request)
            server.connections.add(self.client_address)
            act = server.play(request)
            act = says(act) if isinstance(act, str) else act
            server.closing.wait(act.wait_seconds)
            self.close_connection = act.keep_bytes is not None or not act.says_length
            self.send_response(act.status)
            if act.says_length:
                self.send_header("Content-Length", str(len(act.body)))
            for name, value in act.headers.items():
                self.send_header(name, value)
            while act.drips_headers and not server.closing.wait(act.drip_seconds):
                self.send_header("X-More", "1")
                self.flush_headers()
            self.end_headers()
            for byte in act.body if act.drip_seconds else ():
                self.wfile.write(bytes([byte]))
                time.sleep(act.drip_seconds)
            if not act.drip_seconds:
                self.wfile.write(act.body[: act.keep_bytes])

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler
