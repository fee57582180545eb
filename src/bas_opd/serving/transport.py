"""HTTP requests to a chat-completions server: the completion, or a failure with its class.

Redirects are not followed, because they would carry question and key to any address that the
server names.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import re
import time
import weakref
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, Field, SecretStr, ValidationError

from bas_opd.errors import ConfigError
from bas_opd.serving.endpoint import Endpoint

MAX_REPLY_BYTES = 16_000_000
SHORTEST_SECRET = 12
"""Keys below this length, such as the EMPTY of a local server, are words that replies may hold."""

_OBJECTION = re.compile(r"support|unknown|unrecogni|unexpected|deprecat|permitted|allowed|instead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A completion, and how it was obtained."""

    text: str
    finish: str | None
    """The finish reason in the server's own word; `length` means cut at the token limit."""
    tokens: int
    """Tokens of prompt and completion as the server counts; without a count, bytes of both."""
    fallbacks: tuple[str, ...] = ()
    """Parameters that were left out or renamed because the server rejected them."""


class RequestFailure(Exception):  # noqa: N818
    """One request that failed; the message continues a sentence that begins with the server."""

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
        """The parameter that the server objects to, where it names one."""
        self.retry_after = retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500


class Transport:
    """Sends requests to one endpoint over reused connections; safe to share between threads.

    Connections are closed with the object, or earlier by `close`.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # Their logs show status lines and headers of replies, in which a server may repeat the key.
        for name in ("httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            self._http = httpx2.Client(
                # Compressed replies could grow beyond the size limit while they are unpacked.
                headers={"User-Agent": "bas-opd", "Accept-Encoding": "identity"},
                timeout=endpoint.timeout_seconds,
                limits=httpx2.Limits(max_keepalive_connections=endpoint.at_once),
                # Proxies come from the environment, except for a server on this machine.
                trust_env=not _is_loopback(endpoint.url),
                follow_redirects=False,
            )
        except (ImportError, ValueError, httpx2.InvalidURL):
            raise ConfigError(
                f"The proxy for {endpoint.url} cannot be used. Set http_proxy, https_proxy and "
                "all_proxy to http:// or https:// addresses, or exempt the server with no_proxy."
            ) from None
        self.close = weakref.finalize(self, self._http.close)

    def post(self, body: bytes) -> Reply:
        """Send one request. Neither the result nor any error contains the key."""
        key = self._endpoint.key()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        url = f"{self._endpoint.url.rstrip('/')}/chat/completions"
        deadline = time.monotonic() + self._endpoint.timeout_seconds
        try:
            with self._http.stream("POST", url, content=body, headers=headers) as response:
                if not response.is_success:
                    raise _rejection(response, deadline, key)
                raw = _read(response, deadline)
            completion = _Completion.model_validate_json(raw)
        except ValidationError:
            raise RequestFailure("sent something that is no chat completion") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            what = str(error) or type(error).__name__
            raise RequestFailure(f"could not be reached ({_redacted(what, key)})") from None
        choice = completion.choices[0]
        return Reply(
            text=_redacted(choice.message.content or "", key),
            finish=choice.finish_reason and _redacted(choice.finish_reason, key)[:40],
            tokens=_tokens(completion.usage, len(body) + len(raw)),
        )


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _read(response: httpx2.Response, deadline: float) -> bytes:
    """Read the body within the deadline and the size limit."""
    raw = b""
    # The client's timeout is per read: without the deadline, a server that sends a byte now and
    # then would never time out.
    for part in response.iter_raw():
        raw += part
        if len(raw) > MAX_REPLY_BYTES:
            raise OSError(f"it sent more than {MAX_REPLY_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("it did not finish in time")
    return raw


def _rejection(response: httpx2.Response, deadline: float, key: SecretStr) -> RequestFailure:
    try:
        raw = _read(response, deadline)
    except (httpx2.HTTPError, OSError):
        raw = b""
    message, parameter = _complaint(raw)
    detail = f": {_redacted(message, key)[:300]}" if message else ""
    return RequestFailure(
        f"answered with status {response.status_code}{detail}",
        status=response.status_code,
        parameter=parameter,
        retry_after=_retry_after(response.headers.get("Retry-After")),
    )


def _complaint(raw: bytes) -> tuple[str, str | None]:
    """Return the message of an error and the parameter that it rejects, if it names one."""
    try:
        reply = json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode(errors="replace").strip(), None
    error = reply.get("error", reply) if isinstance(reply, dict) else reply
    if not isinstance(error, dict):
        error = {"message": error}
    detail = error.get("message") or error.get("detail") or ""
    message = detail if isinstance(detail, str) else json.dumps(detail)
    if isinstance(error.get("param"), str):
        return message, error["param"]
    if not _OBJECTION.search(message.lower()):
        return message, None
    named = re.search(r"\b(temperature|max_tokens|seed)\b", message)
    return message, named and named[1]


def _retry_after(value: str | None) -> float:
    """Return the seconds to wait, given as a number or as a date; 0 if neither can be read."""
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
    """Return the tokens that the server counted; without a count, all bytes, which are more."""
    counted = usage if isinstance(usage, dict) else {}
    counts = [counted.get("prompt_tokens"), counted.get("completion_tokens")]
    whole = [count for count in counts if type(count) is int and count >= 0]
    return sum(whole) if len(whole) == len(counts) else size


def _redacted(text: str, key: SecretStr) -> str:
    secret = key.get_secret_value()
    return text.replace(secret, "[key]") if len(secret) >= SHORTEST_SECRET else text
