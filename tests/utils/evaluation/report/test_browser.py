"""The report in a real browser: Chromium, headless."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scored_run import HOSTILE, write_articles, write_run
from utils.evaluation.report.building import build_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect  # waits for what is expected: an article opens a moment after its key


TEXTS = ("reference", "summary", "source")  # in the order of the page


@pytest.fixture(autouse=True)
def no_pictures() -> None:
    """The pictures are drawn here."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        # Chromium's own sandbox does not run as root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The report of one run, and its articles."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    articles = write_run(folder, hostile=True)
    return build_report(folder), articles


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """A function that opens a file in a window of some width; nothing may go wrong on the page."""
    pages: list[Any] = []
    complaints: list[str] = []

    def show(path: Path, width: int = 1400) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(20_000)
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.wait_for_selector("#article-list tbody tr")
        return page

    yield show
    for page in pages:
        page.close()
    assert complaints == []


def numbers_shown(page: Any) -> list[int]:
    return [int(text) for text in page.locator("#article-list tbody th").all_inner_texts()]


def sort_by(page: Any, heading: str) -> None:
    page.locator("#article-list thead").get_by_role("button", name=heading, exact=True).press("Enter")


def test_searching_sorting_and_opening(open_page: Any, run: tuple[Path, list[dict[str, Any]]]) -> None:
    path, articles = run
    page = open_page(path)
    assert numbers_shown(page) == list(range(1, 51))

    page.locator("#search").fill("REPORT 1")  # in the sources, whatever the case
    matching = [i + 1 for i, article in enumerate(articles) if "report 1" in article["source"].lower()]
    page.get_by_text(f"{len(matching)} of 120 articles hold “REPORT 1”").wait_for()
    assert numbers_shown(page) == matching

    header = page.locator("#article-list thead th", has_text="R-2")
    for direction, sign in (("descending", -1), ("ascending", 1)):
        sort_by(page, "R-2")
        assert header.get_attribute("aria-sort") == direction
        order = sorted(matching, key=lambda n: (sign * round(articles[n - 1]["rouge2"], 3), n))
        assert numbers_shown(page) == order

    page.locator("#article-list tbody a").nth(1).press("Enter")
    title = page.locator("#article-title")
    expect(title).to_have_text(f"Article {order[1]}")
    expect(page.locator("#article-position")).to_have_text(f"2 of {len(matching)} found")
    article = articles[order[1] - 1]
    expect(page.locator("#article-texts .text")).to_have_text([article[name] for name in TEXTS])
    expect(page.locator("#article-scores td").nth(2)).to_have_text(f"{article['rouge2']:.1f}")
    assert page.url.endswith(f"#article-{order[1]}")

    for button, place in (("after", 2), ("after", 3), ("before", 2), ("before", 1)):
        page.locator(f"#article-{button}").click()
        expect(title).to_have_text(f"Article {order[place]}")
    page.keyboard.press("Escape")
    page.locator(f"a[href='#article-{order[1]}']:focus").wait_for()  # in its row of the table
    assert not page.locator("#article").is_visible()
    assert "#" not in page.url

    page.locator("#search").fill("no article holds this")
    page.get_by_text("No article holds “no article holds this”").wait_for()
    assert numbers_shown(page) == []


def test_pages_of_the_table(open_page: Any, run: tuple[Path, list[dict[str, Any]]]) -> None:
    page = open_page(run[0])
    page.get_by_role("button", name="Next page").click()
    assert numbers_shown(page) == list(range(51, 101))
    page.get_by_role("button", name="Next page").click()
    expect(page.locator("#page-count")).to_have_text("Page 3 of 3")
    assert numbers_shown(page) == list(range(101, 121))
    assert page.get_by_role("button", name="Next page").is_disabled()
    # Going on from a page's last article turns the page under it.
    page.goto(f"{run[0].as_uri()}#article-50")
    page.locator("#text-source").get_by_text("Report 49").wait_for()
    page.locator("#article-after").click()
    page.keyboard.press("Escape")
    page.locator("a[href='#article-51']:focus").wait_for()
    assert numbers_shown(page) == list(range(51, 101))


FACTS = {
    "source": "The mayor met Ann Lee on Monday. The bridge cost $70 million.",
    "reference": "Mayor met Ann Lee about $70 million bridge.",
    "summary": "On Monday mayor met Ann Low about $90 million bridge.",
}


def test_marks_of_facts(open_page: Any, tmp_path: Path) -> None:
    """In texts that are shown as they are, whatever they hold."""
    write_articles(tmp_path, [{**FACTS, "summary": FACTS["reference"]}, FACTS, HOSTILE])
    page = open_page(build_report(tmp_path))
    sort_by(page, "Unsupported")
    assert numbers_shown(page) == [2, 1, 3]
    page.locator("#article-list tbody a").first.press("Enter")
    for kind, marked in (("wrong", ["Low", "$90 million"]), ("added", ["Monday"]), ("missing", ["Lee", "$70 million"])):
        expect(page.locator(f"#article-texts mark.{kind}")).to_have_text(marked)
    page.goto(f"{page.url.partition('#')[0]}#article-3")
    expect(page.locator("#article-texts .text")).to_have_text([HOSTILE[name] for name in TEXTS])
    assert page.locator("#article-texts mark.added").all_inner_texts() == ["İzmir"]  # after a character of 32 bits


def test_nothing_is_wider_than_the_window(open_page: Any, run: tuple[Path, list[dict[str, Any]]]) -> None:
    page = open_page(run[0])
    page.eval_on_selector_all("details", "all => all.forEach(part => { part.open = true; })")
    for width in (1280, 420):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#article-list tbody a").first.press("Enter")
    page.locator("#article-texts mark").first.wait_for()
    for width in (400, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        sizes = page.eval_on_selector("#article", "dialog => [dialog.scrollWidth, dialog.clientWidth]")
        assert sizes[0] <= sizes[1] <= width
    # The charts are drawn in the colours of the page.
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        [paper, ink] = page.evaluate(
            """() => {
                const title = document.querySelector("#chart-loss text");
                return [getComputedStyle(document.body).backgroundColor, getComputedStyle(title).fill];
            }"""
        )
        brightness = [sum(map(int, colour[4:-1].split(","))) for colour in (paper, ink)]
        assert (brightness[0] < brightness[1]) == (scheme == "dark")
        assert abs(brightness[0] - brightness[1]) > 300
