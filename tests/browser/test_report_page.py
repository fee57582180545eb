"""Pages as a browser shows them: they load nothing, run nothing, and fit a phone.

With BAS_OPD_SCREENSHOTS=FOLDER in the environment, pictures of the pages are left there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, Page, browser, chromium
from report_fixtures import audit, audit_gradients, evaluate, synthetic_run
from shapes import make_pictures

from bas_opd.report.pages.writing import write_comparison, write_report

pytestmark = pytest.mark.browser

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=\'document.title="owned"\'>'
SECTIONS = {
    "run": (
        "budget",
        "selection",
        "audit",
        "time",
        "cost",
        "examples",
        "evaluation",
        "environment",
        "not-run",
    ),
    "comparison": (
        "runs",
        "differences",
        "evaluation",
        "audit",
        "budget",
        "time",
        "cost",
        "environment",
        "not-run",
    ),
}


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    binary = chromium()
    if binary is None:
        pytest.skip("There is no chromium or google-chrome on this machine.")
    with browser(binary) as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a run whose every text is hostile, and that of three runs."""
    home = tmp_path_factory.mktemp("pages")
    data = make_pictures(home / "data", n=60, seed=3)
    texts = {"question": HOSTILE, "answer": HOSTILE, "response": HOSTILE + "long" * 75_000}
    learned = synthetic_run(home / "<b>learned", data, steps=111, prompts=28, texts=texts)
    again = synthetic_run(home / "again", data, steps=111, prompts=28, seed=1)
    full = synthetic_run(home / "full", data, steps=111, prompts=28, policy="full")
    for run, right in ((learned, "110"), (again, "111"), (full, "100")):
        evaluate(run, [answer == "1" for answer in right] * 40)
    for source in ("training", "held-out"):
        audit(learned, source=source, teacher="student")
    audit_gradients(learned)
    return {
        "run": write_report(learned, home / "run").page,
        "comparison": write_comparison([learned, again, full], home / "all").page,
    }


@pytest.fixture(params=["run", "comparison"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def page(name: str, chrome: Browser, pages: dict[str, Path]) -> Page:
    return chrome.open(pages[name])


def test_a_page_complains_of_nothing_and_asks_for_nothing(
    page: Page, name: str, pages: dict[str, Path]
) -> None:
    assert page.complaints == []
    asked = [url for url in page.requests if not url.startswith("data:")]
    assert asked == [pages[name].resolve().as_uri()]


def test_every_section_is_there_and_seen(page: Page, name: str) -> None:
    for place in SECTIONS[name]:
        height = page.run(f"document.getElementById('{place}').getBoundingClientRect().height")
        assert height > 40, place
    assert page.run("document.querySelectorAll('h1').length") == 1
    assert page.run("[...document.images].every(one => one.naturalWidth && one.alt)")
    unnamed = "[...document.querySelectorAll('svg[role=img]')].filter(one => !one.ariaLabel).length"
    assert page.run(unnamed) == 0


@pytest.mark.parametrize("width", [375, 390, 1280])
def test_a_page_is_no_wider_than_its_window(page: Page, name: str, width: int) -> None:
    for dark in (False, True):
        page.resize(width, 900, dark=dark)
        assert page.run("document.documentElement.scrollWidth") == width
        if folder := os.environ.get("BAS_OPD_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(Path(folder) / f"{name}-{width}{'-dark' * dark}.png")


def test_a_huge_text_does_not_make_a_page_huge(chrome: Browser, pages: dict[str, Path]) -> None:
    page = chrome.open(pages["run"], width=375)
    assert page.run("document.documentElement.outerHTML.length") < 3e6
    tallest = "Math.max(...[...document.querySelectorAll('article')].map(one => one.scrollHeight))"
    assert 100 < page.run(tallest) < 2000
    assert "more characters)" in page.run("document.body.innerText")


def test_hostile_text_is_shown_and_never_run(page: Page) -> None:
    assert page.run("document.title") != "owned"
    assert page.run("document.scripts.length") == 0
    assert page.run("document.querySelectorAll('[onerror], b').length") == 0
    assert "<b>learned" in page.run("document.body.innerText")


def test_a_script_that_got_in_would_be_refused(chrome: Browser, tmp_path: Path) -> None:
    # The last line of defence, which no page of ours needs: its policy.
    broken = tmp_path / "broken.html"
    run = synthetic_run(tmp_path / "run", make_pictures(tmp_path / "data", n=12, seed=1), steps=2)
    text = write_report(run, run).page.read_text(encoding="utf-8")
    broken.write_text(text.replace("</main>", f"{HOSTILE}</main>"), encoding="utf-8")
    page = chrome.open(broken)
    assert page.run("document.title") != "owned"
    assert page.complaints != []
