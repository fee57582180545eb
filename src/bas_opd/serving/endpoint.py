"""The address of a served model, and its limits on time, retries and parallel requests."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from bas_opd.errors import ConfigError

_SET_ALREADY = {
    *("model", "messages", "stream", "n"),
    *("temperature", "seed", "max_tokens", "max_completion_tokens"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model behind one address."""

    url: str
    """Without the `/chat/completions`, as in http://127.0.0.1:8000/v1."""
    model: str
    key_variable: str = ""
    """Name of the environment variable that holds the key; empty: none is sent."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as a server's switch for thinking."""
    at_once: int = 8
    tries: int = 6
    """Most requests for one reply, not counting repeats without a rejected parameter."""
    timeout_seconds: float = 300.0
    first_wait_seconds: float = 1.0
    """Doubled with each failure in a row, then reduced by a random share of up to half."""
    longest_wait_seconds: float = 60.0

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
        if taken := self.extra.keys() & _SET_ALREADY:
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
