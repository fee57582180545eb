"""A real browser without a window, driven over two pipes: what a page does when it is opened."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_SECONDS = 30.0

_AT_3_AND_4 = """
import fcntl, os, sys
for end, place in [(fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10), 3 + n)
                   for n, fd in enumerate(sys.argv[1:3])]:
    os.dup2(end, place)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser takes commands at descriptor 3 and answers at 4, and nothing puts them there."""


def chromium() -> str | None:
    """Return the browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(slots=True, kw_only=True)
class Page:
    """What was seen of a page."""

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Errors on the console, exceptions, and what the security policy refused."""

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page, from outside its security policy."""
        answer = self.browser.call(
            "Runtime.evaluate", self.session, expression=expression, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window another size, and the page another time of day."""
        self.browser.call(
            "Emulation.setDeviceMetricsOverride",
            self.session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.call("Emulation.setEmulatedMedia", self.session, features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save what the page looks like."""
        shot = self.browser.call(
            "Page.captureScreenshot", self.session, format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def notice(self, event: dict[str, Any]) -> None:
        """Remember an event that tells something."""
        method, params = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])


class Browser:
    """A running browser: commands go out as JSON, answers and events come back."""

    def __init__(self, sink: int, source: int) -> None:
        self._sink, self._source = sink, source
        self._number = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    def open(self, path: Path, *, width: int = 1280, height: int = 900) -> Page:
        """Open a file and wait until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(browser=self, session=session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable", session)
        page.resize(width, height)
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        while session not in self._loaded:
            self._receive()
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._sink, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select([self._source], [], [], PATIENCE_SECONDS)
            part = os.read(self._source, 1 << 20) if ready else b""
            assert part, "The browser does not answer."
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        session = message.get("sessionId", "")
        if session in self._pages and "method" in message:
            self._pages[session].notice(message)
            if message["method"] == "Page.loadEventFired":
                self._loaded.add(session)
        return message


@contextmanager
def browser(binary: str, *arguments: str) -> Iterator[Browser]:
    """Run a browser with a profile of its own, and end it."""
    commands, answers = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags: Sequence[str] = (
            "--headless",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-extensions",
            "--disable-background-networking",
            "--hide-scrollbars",
            *(("--no-sandbox",) if os.geteuid() == 0 else ()),
            *arguments,
        )
        ends = (commands[0], answers[1])
        process = subprocess.Popen(
            [sys.executable, "-c", _AT_3_AND_4, *map(str, ends), binary, *flags],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands[0])
        os.close(answers[1])
        try:
            yield Browser(commands[1], answers[0])
        finally:
            os.close(commands[1])
            process.terminate()
            process.wait(timeout=20)
            os.close(answers[0])
