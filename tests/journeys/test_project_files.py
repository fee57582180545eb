"""The files around the code: they name what exists, and the version that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_cli import bas_opd

from bas_opd import __version__
from bas_opd.config.loading import presets

ROOT = Path(__file__).parents[2]


def test_the_version_is_cited_and_has_its_changes() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_copies_what_exists_and_is_not_ignored(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.M)
    copied = [file for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for file in line.split()]
    assert copied
    assert all((ROOT / file).exists() and file in kept for file in copied)
    assert 'ENTRYPOINT ["bas-opd"]' in text


def test_the_first_screen_of_the_readme_shows_the_task_the_result_and_the_demo() -> None:
    first = (ROOT / "README.md").read_text("utf-8").splitlines()[:22]
    text = "\n".join(first)
    assert "docs/task.png" in text
    assert "of the 5.1 points" in text
    assert "make demo" in text
    assert "guarantee | test" not in (ROOT / "README.md").read_text("utf-8")


def test_recipes_of_the_readme_are_presets() -> None:
    table = (ROOT / "README.md").read_text("utf-8").partition("| recipe |")[2].partition("\n\n")[0]
    recipes = re.findall(r"^\| `([\w.-]+)", table, re.M)
    assert set(recipes) == {"tiny", "qwen3.5-4b-lora", "qwen3.5-4b", "qwen3.5-9b"}
    assert set(recipes) <= presets().keys()


def test_a_shell_completes_presets(tmp_path: Path) -> None:
    shown = bas_opd("--show-completion", "bash", cwd=tmp_path)
    assert "_bas_opd_completion" in shown.stdout
    said = bas_opd(
        cwd=tmp_path,
        _BAS_OPD_COMPLETE="complete_bash",
        COMP_WORDS="bas-opd train learned",
        COMP_CWORD="2",
    )
    assert "learned25" in said.stdout.split()
