"""One request to a chat-completions server: what came back, or what went wrong."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from pydantic import BaseModel, Field, SecretStr, ValidationError

from bas_opd.serving.endpoint import Endpoint

MAX_REPLY_BYTES = 16_000_000
SHORTEST_SECRET = 12
"""Keys below this length, such as the EMPTY of a local server, are words that replies may hold."""

_OBJECTION = re.compile(r"support|unknown|unrecogni|unexpected|deprecat|permitted|allowed|instead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one request brought."""

    text: str
    finish: str | None
    tokens: int


class RequestFailure(Exception):  # noqa: N818
    """One request that failed; the message goes on after the server's name."""

    def __init__(
        self,
        what: str,
        *,
        status: int | None = None,
        parameter: str | None = None,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(what)
        self.status = status
        self.parameter = parameter
        """What the server objects to, where it says so."""
        self.retry_after = retry_after

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500


def post(endpoint: Endpoint, body: bytes) -> Said:
    """Send one request. Neither what it returns nor what it raises holds the key."""
    key = endpoint.key()
    headers = {"Content-Type": "application/json", "User-Agent": "bas-opd"}
    if key:
        headers["Authorization"] = f"Bearer {key.get_secret_value()}"
    request = Request(f"{endpoint.url.rstrip('/')}/chat/completions", data=body, headers=headers)
    seconds = endpoint.timeout_seconds
    deadline = time.monotonic() + seconds
    try:
        with build_opener(*_handlers(endpoint.url)).open(request, timeout=seconds) as response:
            raw = _body(response, deadline)
        said = _Completion.model_validate_json(raw)
    except HTTPError as error:
        raise _refusal(error, deadline, key) from None
    except ValidationError:
        raise RequestFailure("sent something that is no chat completion") from None
    except (OSError, HTTPException) as error:
        what = str(error) or type(error).__name__
        raise RequestFailure(f"could not be heard ({_hidden(what, key)})") from None
    choice = said.choices[0]
    return Said(
        text=_hidden(choice.message.content or "", key),
        finish=choice.finish_reason and _hidden(choice.finish_reason, key)[:40],
        tokens=_tokens(said.usage, len(body) + len(raw)),
    )


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry question and key to whatever address the server names."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _handlers(url: str) -> list[Any]:
    """Return how a request travels: a server on this machine is no business of a proxy's."""
    host = urlsplit(url).hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost" or host.endswith(".localhost")
    return [_NoRedirect, ProxyHandler({})] if is_here else [_NoRedirect]


def _body(response: Any, deadline: float) -> bytes:
    """Read a body to its end, in time and not without limit."""
    raw, expected = b"", response.length
    # By parts, or a server that sends a byte now and then would never run out of time. An end that
    # comes too soon needs no check: no part of a JSON object is one.
    while (expected is None or len(raw) < expected) and (part := response.read1(65536)):
        raw += part
        if len(raw) > MAX_REPLY_BYTES:
            raise OSError(f"it sent more than {MAX_REPLY_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("it did not finish in time")
    return raw


def _refusal(error: HTTPError, deadline: float, key: SecretStr) -> RequestFailure:
    with error:
        try:
            raw = _body(error, deadline)
        except (OSError, HTTPException):
            raw = b""
    message, parameter = _complaint(raw)
    detail = f": {_hidden(message, key)[:300]}" if message else ""
    return RequestFailure(
        f"answered with status {error.code}{detail}",
        status=error.code,
        parameter=parameter,
        retry_after=_retry_after(error.headers.get("Retry-After")),
    )


def _complaint(raw: bytes) -> tuple[str, str | None]:
    """Return what an error says and the parameter that it objects to, or names as rejected."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode(errors="replace").strip(), None
    error = said.get("error", said) if isinstance(said, dict) else said
    if not isinstance(error, dict):
        error = {"message": error}
    told = error.get("message") or error.get("detail") or ""
    message = told if isinstance(told, str) else json.dumps(told)
    if isinstance(error.get("param"), str):
        return message, error["param"]
    if not _OBJECTION.search(message.lower()):
        return message, None
    named = re.search(r"\b(temperature|max_tokens|seed)\b", message)
    return message, named and named[1]


def _retry_after(value: str | None) -> float:
    """Return the seconds a server asks to wait, given as such or as a date; 0 where unclear."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _tokens(usage: Any, size: int) -> int:
    """Return the tokens a server counted, or all bytes, which are more, where it did not count."""
    counted = usage if isinstance(usage, dict) else {}
    counts = [counted.get("prompt_tokens"), counted.get("completion_tokens")]
    whole = [count for count in counts if type(count) is int and count >= 0]
    return sum(whole) if len(whole) == len(counts) else size


def _hidden(text: str, key: SecretStr) -> str:
    secret = key.get_secret_value()
    return text.replace(secret, "[key]") if len(secret) >= SHORTEST_SECRET else text
