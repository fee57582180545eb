"""`export --push` against a stand-in for the API of the Hugging Face hub."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from run_fixtures import small_run
from serving_fixtures import served
from typer.testing import CliRunner

from bas_opd.cli.main import app

TOKEN = "hf_averysecrettoken"
NAME = "a-user/learned25"


class Hub:
    """Keeps what is uploaded, and remembers every request."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.paths: list[str] = []
        self.refuses: dict[str, int] = {}
        """Part of a path -> status."""
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def answer(self, path: str, body: bytes, token: str | None) -> tuple[int, Any]:
        self.paths.append(path)
        for part, status in self.refuses.items():
            if part in path:
                return status, {"error": "no"}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "who are you"}
        if path == "/api/whoami-v2":
            return 200, {"name": "a-user", "type": "user"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            hidden = asked.get("private", asked.get("visibility") == "private")
            self.models[name] = {"id": name, "private": hidden}
            return 200, {"url": f"{self.url}/{name}", "name": name}
        if path == f"/api/models/{NAME}/preupload/main":
            files = json.loads(body)["files"]
            kept = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            return 200, {"files": kept}
        if path == f"/api/models/{NAME}/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.files[value["path"]] = base64.b64decode(value["content"])
            return 200, {"commitUrl": f"{self.url}/{NAME}/commit/1", "commitOid": "1" * 40}
        if path.startswith("/api/models/") and path.removeprefix("/api/models/") in self.models:
            return 200, self.models[path.removeprefix("/api/models/")]
        return 404, {"error": "Repository not found"}


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            status, content = hub.answer(path, body, self.headers.get("Authorization"))
            reply = json.dumps(content).encode()
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with served((hub := Hub())._http, hub.closing):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        yield hub


@pytest.fixture(scope="module")
def run(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run"), small_qwen35, "run.steps=3")


def export(run: Path, out: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["export", str(run), str(out), *words])


def test_a_push_names_its_files_and_uploads_them_as_private(
    run: Path, tmp_path: Path, hub: Hub
) -> None:
    out = tmp_path / "out"
    done = export(run, out, "--push", NAME)
    assert done.exit_code == 0, (done.output, hub.paths)
    assert hub.models == {NAME: {"id": NAME, "private": True}}
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir()}
    assert f"to the new private model {NAME}: README.md, " in done.stderr
    assert all(path.name in done.stderr for path in out.iterdir())
    assert done.stdout.splitlines()[-1] == f"{hub.url}/{NAME}"


def test_the_card_has_the_ledger_and_loads_the_pushed_model(
    run: Path, tmp_path: Path, hub: Hub
) -> None:
    done = export(run, tmp_path / "out", "--push", NAME, "--json")
    assert json.loads(done.stdout)["pushed"] == f"{hub.url}/{NAME}"
    card = hub.files["README.md"].decode()
    assert f'from_pretrained("{NAME}")' in card
    assert "FOLDER" not in card
    totals = json.loads((run / "records.jsonl").read_text().splitlines()[-1])["totals"]
    assert f"| teacher calls | {totals['calls']:,} of {totals['candidates']:,} candidates |" in card
    assert f"{totals['scored_tokens']:,} of {totals['candidate_tokens']:,}" in card
    assert "| budget | 0.25 of the candidates of each step |" in card


def test_nothing_secret_and_no_path_of_this_machine_leaves_it(
    run: Path, tmp_path: Path, hub: Hub
) -> None:
    done = export(run, tmp_path / "out", "--push", NAME)
    assert TOKEN not in done.output
    for name, content in hub.files.items():
        assert TOKEN.encode() not in content, name
        assert str(tmp_path.parent).encode() not in content, name
        assert str(run.parent).encode() not in content, name


def test_a_public_model_is_written_to_only_if_that_is_said(
    run: Path, tmp_path: Path, hub: Hub
) -> None:
    hub.models[NAME] = {"id": NAME, "private": False}
    done = export(run, tmp_path / "out", "--push", NAME)
    assert done.exit_code == 2
    assert "exists and is public" in done.stderr
    assert (hub.files, (tmp_path / "out").exists()) == ({}, False)
    done = export(run, tmp_path / "out", "--push", NAME, "--public")
    assert f"to the existing public model {NAME}" in done.stderr
    assert "README.md" in hub.files


def test_a_new_model_is_public_if_that_is_said(run: Path, tmp_path: Path, hub: Hub) -> None:
    assert export(run, tmp_path / "out", "--push", NAME, "--public").exit_code == 0
    assert hub.models[NAME]["private"] is False


@pytest.mark.parametrize("name", ["learned25", "a/b/c", "a user/x", "/x", "a/", "a--b/x", ""])
def test_a_name_that_is_not_owner_and_name_is_refused_first(
    tmp_path: Path, hub: Hub, name: str
) -> None:
    done = export(tmp_path / "no-run", tmp_path / "out", "--push", name)
    assert done.exit_code == 2
    assert "--push takes OWNER/NAME" in done.stderr
    assert hub.paths == []


def test_without_a_token_nothing_is_exported(
    run: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    done = export(run, tmp_path / "out", "--push", NAME)
    assert done.exit_code == 2
    assert "There is no token" in done.stderr
    assert "hf auth login" in done.stderr
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    done = export(run, tmp_path / "out", "--push", NAME)
    assert "does not accept the token" in done.stderr
    assert "hf_another" not in done.output


def test_without_a_network_nothing_is_exported(
    run: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    done = export(run, tmp_path / "out", "--push", NAME)
    assert done.exit_code == 1
    assert "cannot be reached" in done.stderr
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in export(run, tmp_path / "out", "--push", NAME).stderr


def test_a_push_that_fails_leaves_the_folder_and_says_how_to_go_on(
    run: Path, tmp_path: Path, hub: Hub
) -> None:
    hub.refuses = {"/commit/": 403}
    done = export(run, tmp_path / "out", "--push", NAME)
    assert done.exit_code == 1
    assert "the token may not write there" in done.stderr
    assert f"`hf upload {NAME} {tmp_path / 'out'} --private`" in done.stderr
    assert (tmp_path / "out" / "README.md").is_file()


def test_the_command_of_a_failed_push_creates_no_public_model(
    run: Path, tmp_path: Path, hub: Hub
) -> None:
    hub.refuses = {"/repos/create": 403}
    done = export(run, tmp_path / "an out", "--push", NAME)
    assert done.exit_code == 1
    assert f"`hf upload {NAME} '{tmp_path / 'an out'}' --private`" in done.stderr
    done = export(run, tmp_path / "other", "--push", NAME, "--public")
    assert f"`hf upload {NAME} {tmp_path / 'other'}`" in done.stderr


def test_public_alone_means_nothing(run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "out", "--public")
    assert done.exit_code == 2
    assert "Add --push" in done.stderr
