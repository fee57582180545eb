"""The files around the code: they name what exists, and the version that it has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from test_cli import bas_opd

from bas_opd import __version__
from bas_opd.config.loading import presets

ROOT = Path(__file__).parents[2]


def test_the_version_is_cited_and_has_its_changes() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_paper_is_cited_by_its_authors_in_both_forms() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    (paper,) = cited["references"]
    names = [f"{each['family-names']}, {each['given-names']}" for each in paper["authors"]]
    bibtex = (ROOT / "README.md").read_text("utf-8").partition("```bibtex")[2].partition("```")[0]
    flat = " ".join(bibtex.split())
    assert f"author = {{{' and '.join(names)}}}" in flat
    assert paper["title"] in flat


def test_what_the_troubleshooting_page_quotes_is_what_the_code_says() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    quoted = re.findall(r'^\| "([^"]+)"', table, re.M)
    assert len(quoted) >= 4
    code = "\n".join(file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py"))
    said = re.sub(r'"\s+f?"', "", code)  # of strings that go on in the next line
    said = re.sub(r"\{[^{}]*\}", "...", said)
    assert [words for words in quoted if words not in said] == []


def test_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text("utf-8")
        named = re.findall(r"(?:^|`)make ([a-z]+(?: [a-z]+)*)", text, re.M)
        assert named
        for target in " ".join(named).split():
            assert f"\n{target}:" in makefile or f" {target}:" in makefile, target


def test_a_release_installs_the_wheel_elsewhere_and_runs_the_demo_from_it() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--assume-old=.venv/.ready", "release"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    order = ("pip wheel", "mktemp -d", "-m venv", "pip install", 'cd "$place"', "bas-opd demo")
    places = [shown.index(step) for step in order]
    assert places == sorted(places)
    assert f"bas-opd demo --folder {ROOT}/build" in shown  # The page outlives the environment.


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_copies_what_exists_and_is_not_ignored(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.M)
    copied = [file for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for file in line.split()]
    assert copied
    assert all((ROOT / file).exists() and file in kept for file in copied)
    assert 'ENTRYPOINT ["bas-opd"]' in text
    installed = text.index("pip install")
    assert "--constraint /src/requirements.lock" in text[installed:]
    assert text.index("USER 1000:1000") > installed
    assert "HF_HOME=/cache/huggingface" in text


def test_a_message_installs_what_an_index_has() -> None:
    """The package itself is on none."""
    for file in (ROOT / "src").rglob("*.py"):
        assert file.parts[-2] == "charts" or "bas-opd[" not in file.read_text("utf-8"), file


def test_the_first_screen_of_the_readme_shows_the_task_the_result_and_the_demo() -> None:
    first = (ROOT / "README.md").read_text("utf-8").splitlines()[:22]
    text = "\n".join(first)
    assert "docs/task.png" in text
    assert "full querying gains 11.1 points" in text
    assert "make demo" in text
    assert "guarantee | test" not in (ROOT / "README.md").read_text("utf-8")


def test_recipes_of_the_readme_are_presets() -> None:
    table = (ROOT / "README.md").read_text("utf-8").partition("| recipe |")[2].partition("\n\n")[0]
    recipes = re.findall(r"^\| `([\w.-]+)", table, re.M)
    assert set(recipes) == {"tiny", "qwen3.5-4b-lora", "qwen3.5-4b", "qwen3.5-9b"}
    assert set(recipes) <= presets().keys()


def test_a_shell_completes_presets(tmp_path: Path) -> None:
    # Otherwise the shell is the one that runs the tests.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = bas_opd("--show-completion", "bash", cwd=tmp_path, **named)
    assert "_bas_opd_completion" in shown.stdout
    said = bas_opd(
        cwd=tmp_path,
        _BAS_OPD_COMPLETE="complete_bash",
        COMP_WORDS="bas-opd train learned",
        COMP_CWORD="2",
    )
    assert "learned25" in said.stdout.split()


def test_the_lock_with_hashes_has_the_pins_of_the_lock_but_torch() -> None:
    pins = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements.lock").read_text("utf-8"), re.M)
    text = (ROOT / "requirements.hashes.lock").read_text("utf-8")
    hashed = re.findall(r"^([\w-]+)==(\S+) (?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+$", text, re.M)
    assert hashed == [pin for pin in pins if pin[0] != "torch"]
    torch = f"torch=={dict(pins)['torch']}"
    assert f"pip install {torch}\n" in text
    assert f"`pip install {torch}`" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_the_audit_looks_at_every_pin() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "audit"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "pip-audit==" in shown
    assert "--requirement requirements.lock" in shown
