"""The pages a reader copies from: their Python runs, their commands, keys and links exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from doc_names import assert_exists, names_in

from bas_opd.cli.main import app
from bas_opd.config import Config, load_config

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SECTIONS: dict[str, Any] = {n: field.annotation for n, field in Config.model_fields.items()}


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M)


WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
COMMANDS = [
    (page.name, line.partition("  #")[0].strip())
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
]


def test_the_pages_for_copying_have_python() -> None:
    assert {page.name for page in WITH_PYTHON} >= {"README.md", "use-in-your-trainer.md"}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks(page, "python"))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def preset_path(name: str) -> Path | None:
    """The file of a preset; none for the name of a reader's own file."""
    path = ROOT / "configs" / f"{name.removeprefix('configs/').removesuffix('.toml')}.toml"
    return path if path.is_file() else None


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_of_a_page_exists(page: str, line: str) -> None:
    program, *words = shlex.split(line)
    while re.match(r"[A-Z_]+=", program):  # Variables of its environment come first.
        program, *words = words
    if program == "torchrun":
        words = words[words.index("-m") + 1 :]
        assert words.pop(0) == "bas_opd"
        program = "bas-opd"
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
    elif program == "bas-opd":
        command: Any = typer.main.get_command(app)
        while words and not words[0].startswith("-") and hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
        for word in words:
            assert not word.startswith("configs/") or (ROOT / word).is_file()
        if command.name in ("train", "plan") and (preset := preset_path(words[0])):
            settings = [word for word in words[1:] if re.match(r"\w+\.\w+=", word)]
            load_config(preset, ["model.path=M", "data.path=D", "run.output=R", *settings])
    elif program == "python":
        file = f"{words[1].replace('.', '/')}.py" if words[0] == "-m" else words[0]
        assert (ROOT / file).is_file()
    elif program == "pip":
        offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = words[1].removeprefix(".[").removesuffix("]").split(",")
        assert set(extras) <= offered["optional-dependencies"].keys()
    else:
        assert program == "source"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_every_setting_of_a_page_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if not link.startswith("https://"):
            path, _, heading = link.partition("#")
            assert (page.parent / path).exists(), link
            if heading:
                linked = (page.parent / path).read_text("utf-8").lower()
                assert f"#-{heading}\n" in re.sub(r"[?,.:]", "", linked).replace(" ", "-"), link
    for section, name in re.findall(rf"(?<=[` ])({'|'.join(SECTIONS)})\.(\w+)(?=[`=])", text):
        assert name in SECTIONS[section].model_fields, name


ARCHITECTURE = names_in((ROOT / "docs" / "architecture.md").read_text("utf-8"))


@pytest.mark.parametrize(("file", "name"), ARCHITECTURE, ids=map("::".join, ARCHITECTURE))
def test_a_name_on_the_page_of_the_architecture_exists(file: str, name: str) -> None:
    assert_exists(file, name)
