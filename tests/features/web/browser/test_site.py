"""The documentation in a browser: it opens from the disk, fits the screen, and requests nothing from the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.async_api import ConsoleMessage, Page, expect

from tests.features.web.browser.conftest import NewPage
from tests.needs import needs

PROJECT = Path(__file__).parents[4]
pytestmark = [needs("chromium"), pytest.mark.asyncio(loop_scope="module")]

# Elements of the article that are wider than the screen, and code that neither fits nor scrolls.
_LAYOUT = """() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const scrolled = (element) => {
    for (let e = element.parentElement; e; e = e.parentElement) if (scrolls(e)) return true;
    return false;
  };
  const name = (element) => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`;
  const wide = [...document.querySelectorAll("article *")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && (box.left < -1 || box.right > width + 1) && !scrolled(element);
  });
  const cut = [...document.querySelectorAll("article pre > code")].filter(
    (element) => element.scrollWidth > element.clientWidth + 1 && !scrolls(element));
  const page = document.documentElement.scrollWidth > width ? ["the page itself"] : [];
  return [...page, ...wide.map(name), ...cut.map(name)];
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "scripts.site", str(made)], cwd=PROJECT, check=True, timeout=200)
    return made


def errors_of(page: Page) -> list[str]:
    """Collect the errors and warnings that the page writes to the console from now on."""
    found: list[str] = []

    def look(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.append(message.text)

    page.on("console", look)
    return found


@pytest.mark.timeout(300)  # some 70 pages, each loaded with its scripts
async def test_every_page_fits_the_screen_without_errors(site: Path, new_page: NewPage) -> None:
    page = await new_page()
    errors = errors_of(page)
    wrong = {}
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    assert len(pages) > 60
    for path in pages:
        for width in (1400, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            if width == 1400:
                await page.goto(f"file://{path}")
            if found := await page.evaluate(_LAYOUT):
                wrong[str(path.relative_to(site)), width] = found
    assert (wrong, errors) == ({}, [])


@pytest.mark.parametrize("width", [1400, 390])
async def test_the_drawing_of_the_home_page_is_wholly_visible(width: int, site: Path, new_page: NewPage) -> None:
    page = await new_page(width=width)
    await page.goto(f"file://{site}/index.html")
    drawing = page.locator("article pre > code").filter(has_text="your program")
    await expect(drawing).to_have_count(1)
    scroll, inner, left, right = await drawing.evaluate(
        "e => [e.scrollWidth, e.clientWidth, e.getBoundingClientRect().left, e.getBoundingClientRect().right]"
    )
    assert scroll <= inner and left >= 0 and right <= width


async def test_a_page_that_overflows_is_found(site: Path, new_page: NewPage) -> None:
    page = await new_page(width=390)
    await page.goto(f"file://{site}/index.html")
    await page.evaluate("""() => {
      const article = document.querySelector("article");
      article.insertAdjacentHTML("beforeend", "<p style='width: 900px'>too wide</p>");
      for (const code of document.querySelectorAll("pre > code")) code.style.overflow = "hidden";
    }""")
    found = await page.evaluate(_LAYOUT)
    assert "P too wide" in found and [text for text in found if text.startswith("CODE")] != []


async def test_the_search_of_the_documentation_works_from_the_disk(site: Path, new_page: NewPage) -> None:
    page = await new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"file://{site}/index.html")
    await page.get_by_role("textbox", name="Search").press_sequentially("prompt_once")
    found = page.locator(".md-search-result__link").filter(has_text="Migrate from YAML")
    await expect(found.first).to_be_visible(timeout=60_000)
    await found.first.click()
    await expect(page.get_by_role("heading", name="Migrate from YAML")).to_be_visible(timeout=60_000)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
