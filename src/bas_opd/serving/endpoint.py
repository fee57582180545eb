"""A served model: its address and limits, and HTTP requests to it.

Redirects are not followed, because they would carry question and key to any address that the
server names.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2
from pydantic import AliasPath, BaseModel, Field, SecretStr, ValidationError

from bas_opd.errors import ConfigError
from bas_opd.validation import SET_ALREADY

MAX_REPLY_BYTES = 16_000_000
MAX_WRITE_BYTES = 65_536
READ_SECONDS = 0.2
"""After which a read that waits looks whether it still may."""
SHORTEST_SECRET = 12
"""Keys below this length, such as the EMPTY of a local server, are words that replies may hold."""

_OBJECTION = re.compile(r"support|unknown|unrecogni|unexpected|deprecat|permitted|allowed|instead")

STOP_SECONDS = 20.0
"""Longest wait for replies when a run is asked to stop: many schedulers kill it after 30."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model behind one address."""

    url: str
    """Without the path of a request, as in http://127.0.0.1:8000/v1."""
    model: str
    key_variable: str = ""
    """Name of the environment variable that holds the key; empty: none is sent."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as a server's switch for thinking."""
    at_once: int = 8
    tries: int = 6
    """Most requests for one reply, not counting repeats without a rejected parameter."""
    timeout_seconds: float = 300.0
    """For a connection, and for a request from its first byte to the last one of its reply."""
    first_wait_seconds: float = 1.0
    """Doubled with each failure in a row, then reduced by a random share of up to half."""
    longest_wait_seconds: float = 60.0
    stop_seconds: float | None = None
    """Longest wait for requests that are out when the program is asked to stop, and for a
    connection; None: `timeout_seconds`."""

    def __post_init__(self) -> None:
        # A rejected value is not shown: it may be the key itself, in the wrong place.
        try:
            parts = urlsplit(self.url)
            is_plain = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_plain &= parts.username is None and not (parts.query or parts.fragment)
        except ValueError:
            is_plain = False
        if not is_plain:
            raise ConfigError(
                "The address of a server is http:// or https://, a host and a path, without a user "
                "name or a query. Correct it, and name a key by its environment variable."
            )
        if self.key_variable and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.key_variable):
            raise ConfigError(
                "A key is given as the name of an environment variable in capital letters, such as "
                "OPENAI_API_KEY, never as the key itself."
            )
        if self.key_variable:
            _warn_of_open_key(self.key_variable, self.url)
        if taken := self.extra.keys() & SET_ALREADY:
            raise ConfigError(
                f"The extra fields of a request cannot set {', '.join(sorted(taken))}, because "
                "these are set already. Leave them out."
            )
        if min(self.at_once, self.tries) < 1 or self.timeout_seconds <= 0:
            raise ConfigError(
                f"A server needs at least one request at once (now {self.at_once}), one try "
                f"(now {self.tries}) and some time (now {self.timeout_seconds:g} s)."
            )

    def key(self) -> SecretStr:
        """Read the key from the environment."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        if self.key_variable and not key:
            raise ConfigError(
                f"The environment variable {self.key_variable}, which should hold the key for "
                f"{self.url}, is not set. Set it and run the same command again."
            )
        # Checked here, because the HTTP library would quote a bad header in its error.
        if not (key.isascii() and (key.isprintable() or not key)):
            raise ConfigError(
                f"The key in {self.key_variable} holds characters that no request can carry. "
                "Copy it again."
            )
        return SecretStr(key)


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


@dataclass(eq=False)
class RequestFailure(Exception):  # noqa: N818
    """One request that failed."""

    what: str
    """Continues a sentence that begins with the server."""
    status: int | None = None
    parameter: str | None = None
    """The parameter that the server objects to, where it names one."""
    retry_after: float = 0.0

    def __str__(self) -> str:
        return self.what

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500


@dataclass(slots=True)
class Deadline:
    """The moment after which no reply is waited for, in seconds of `time.monotonic`."""

    at: float = math.inf


def open_http(endpoint: Endpoint, deadline: Deadline | None = None) -> httpx2.Client:
    """Return a client that reuses its connections; safe to share between threads.

    All its requests end at the deadline, which may be set while they are out.
    """
    longest, stop = endpoint.timeout_seconds, endpoint.stop_seconds
    # Their logs show status lines and headers of replies, in which a server may repeat the key.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        return httpx2.Client(
            # Compressed replies could grow beyond the size limit while they are unpacked.
            headers={"User-Agent": "bas-opd", "Accept-Encoding": "identity"},
            # A connection that is being made cannot be given up, so it has less time.
            timeout=httpx2.Timeout(
                longest, connect=longest if stop is None else min(longest, stop)
            ),
            transport=_TimedTransport(
                deadline or Deadline(),
                limits=httpx2.Limits(max_keepalive_connections=endpoint.at_once),
                # Proxy and certificates come from the environment as the standard library reads
                # it: one proxy for this address, and SSL_CERT_FILE where there is such a file.
                proxy=_proxy(endpoint.url),
                verify=ssl.create_default_context(),
                trust_env=False,
            ),
            trust_env=False,
            follow_redirects=False,
            # A cookie would tie requests together that have nothing to do with each other.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )
    except (ImportError, ValueError, httpx2.InvalidURL):
        raise ConfigError(
            f"The proxy for {endpoint.url} cannot be used. Set http_proxy, https_proxy and "
            "all_proxy to http:// or https:// addresses, or exempt the server with no_proxy."
        ) from None


def post(http: httpx2.Client, endpoint: Endpoint, body: bytes) -> Reply:
    """Ask for a completion. Neither the result nor any error contains the key."""
    raw = exchange(http, endpoint, f"{endpoint.url.rstrip('/')}/chat/completions", body)
    try:
        completion = _Completion.model_validate_json(raw)
    except ValidationError:
        raise RequestFailure("sent something that is no chat completion") from None
    key = endpoint.key()
    return Reply(
        text=_redacted(completion.message.content or "", key),
        finish=completion.finish and _redacted(completion.finish, key)[:40],
        tokens=_tokens(completion.usage, len(body) + len(raw)),
    )


def exchange(
    http: httpx2.Client,
    endpoint: Endpoint,
    url: str,
    body: bytes | None = None,
    *,
    max_bytes: int | None = None,
    timeout_seconds: float | None = None,
) -> bytes:
    """Send one request, a GET without a body, and return the body of its reply.

    No error contains the key; the reply may. `timeout_seconds` replaces the endpoint's.
    """
    key = endpoint.key()
    headers = {} if body is None else {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key.get_secret_value()}"
    method = "GET" if body is None else "POST"
    timeout = http.timeout if timeout_seconds is None else httpx2.Timeout(timeout_seconds)
    try:
        with http.stream(method, url, content=body, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                raise _rejection(response, key)
            return _read(response, max_bytes or MAX_REPLY_BYTES)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise RequestFailure(_redacted(_what_failed(error, timeout), key)) from None


def _what_failed(error: Exception, timeout: httpx2.Timeout) -> str:
    """Return what a server did that sent no whole reply; continues a sentence about it."""
    if isinstance(error, httpx2.ConnectTimeout):
        return f"could not be reached within {timeout.connect:g} s"
    if isinstance(error, httpx2.TimeoutException):
        return f"did not finish its reply within {timeout.read:g} s"
    what = str(error) or type(error).__name__
    if isinstance(error, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError):
        return f"broke off the connection ({what})"
    return f"could not be reached ({what})"


class _Message(BaseModel):
    content: str | None = None


class _Completion(BaseModel):
    message: _Message = Field(validation_alias=AliasPath("choices", 0, "message"))
    finish: str | None = Field(None, validation_alias=AliasPath("choices", 0, "finish_reason"))
    usage: Any = None


def _proxy(url: str) -> str | None:
    """Return the proxy for an address; a server on this machine has none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _is_here(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _is_here(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@cache
def _warn_of_open_key(variable: str, url: str) -> None:
    """Warn of a key that others can read on its way; once in a process."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not _is_here(parts.hostname or ""):
        logging.getLogger(__name__).warning(
            f"The key in {variable} is sent to {parts.netloc} over plain http, where others can "
            "read it. Use https, or a tunnel that ends on this machine."
        )


class _TimedStream(httpcore2.NetworkStream):
    """A connection with one timeout for all that is written and read for a request.

    The timeouts of httpx2 are for each read: a server that sends a byte now and then, of its
    headers or of its reply, would never time out. A reply is read in short waits, so that a
    deadline that is set meanwhile ends them.
    """

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline
        self._began = time.monotonic()
        self._is_replying = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._is_replying = True
        while True:
            left = self._left(timeout)
            if left is None:
                return self._stream.read(max_bytes)
            try:
                return self._stream.read(max_bytes, min(left, READ_SECONDS))
            except httpcore2.ReadTimeout:
                continue

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._is_replying:  # The connection is used again.
            self._began, self._is_replying = time.monotonic(), False
        for start in range(0, len(buffer), MAX_WRITE_BYTES):
            self._stream.write(buffer[start : start + MAX_WRITE_BYTES], self._left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        left = self._left(timeout)
        stream = self._stream.start_tls(ssl_context, server_hostname, left)
        return _TimedStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left(self, timeout: float | None) -> float | None:
        if timeout is None:
            return None
        left = min(self._began + timeout, self._deadline.at) - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout("it did not finish in time")
        return left


class _TimedBackend(httpcore2.SyncBackend):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore2.NetworkStream:
        return _TimedStream(super().connect_tcp(*args, **kwargs), self._deadline)


@cache
def _warn_of_long_replies() -> None:
    """Warn that only single reads have a timeout; once in a process."""
    logging.getLogger(__name__).warning(
        f"Requests as a whole have no timeout with httpx2 {httpx2.__version__}: a server that "
        "sends a byte now and then keeps them waiting. Install the version in requirements.lock."
    )


class _TimedTransport(httpx2.HTTPTransport):
    def __init__(self, deadline: Deadline, **options: Any) -> None:
        super().__init__(**options)
        # httpcore2 takes it as an argument, which httpx2 does not pass on.
        if hasattr(getattr(self, "_pool", None), "_network_backend"):
            self._pool._network_backend = _TimedBackend(deadline)
        else:
            _warn_of_long_replies()


def _read(response: httpx2.Response, max_bytes: int) -> bytes:
    """Read the body within the size limit."""
    raw = bytearray()
    for part in response.iter_raw():
        raw += part
        if len(raw) > max_bytes:
            raise RequestFailure(f"sent more than {max_bytes:,} bytes")
    return bytes(raw)


def _rejection(response: httpx2.Response, key: SecretStr) -> RequestFailure:
    try:
        raw = _read(response, MAX_REPLY_BYTES)
    except (httpx2.HTTPError, OSError, RequestFailure):
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
