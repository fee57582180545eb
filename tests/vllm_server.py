"""A real vLLM server on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST = 20
"""Log-probs that a request may ask for."""
ONE = ("-m", "vllm.entrypoints.openai.api_server")
"""vLLM as it is on a CPU, with its first model runner."""
TWO = (str(Path(__file__).parent / "engines" / "interpreted_vllm.py"),)
"""The same with its second, which scores chosen ids."""
SECONDS = 240
"""The longest that a server takes to start."""


@contextmanager
def serving(model: Path, log: Path, *options: str, program: Sequence[str] = ONE) -> Iterator[str]:
    """Serve a model as the documents say, and yield the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *program, "--model", str(model)]
    command += ["--served-model-name", "a-teacher", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--max-logprobs", str(MOST), "--limit-mm-per-prompt", '{"image":1,"video":0}']
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, *options], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _wait_for(server, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(60)


def _wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace")[-4000:])
