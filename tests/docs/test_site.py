"""The documentation as a site: every page is rendered as written, and nothing comes from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from markdown import Markdown

from scripts import rendering
from scripts.site import PAGES, in_dialect

PROJECT = Path(__file__).parents[2]
_LOADED = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="?((?:https?:)?//[^" >]+)')
_BUILD = "import sys; from pathlib import Path; from scripts.site import main; main(*map(Path, sys.argv[1:]))"


def build(site: Path, root: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _BUILD, str(site), str(root)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    done = build(made)
    assert (done.returncode, done.stderr) == (0, "")
    return made


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {site / "index.html", site / "docs/reference/settings.html"} <= {*pages}
    assert {page.name: found for page in pages if (found := _LOADED.findall(page.read_text()))} == {}


def _pages() -> Iterator[str]:
    for page in PAGES:
        found = PROJECT / page
        files = sorted(found.rglob("*.md")) if found.is_dir() else [found]
        yield from (
            str(file.relative_to(PROJECT)) for file in files if file.suffix == ".md" and file.name != "SKILL.md"
        )


def _written(source: str) -> list[tuple[str, str]]:
    """Headings and code blocks, read line by line: a third opinion besides both parsers."""
    parts: list[tuple[str, str]] = []
    block: list[str] | None = None
    indent = 0
    for line in source.splitlines():
        if block is not None and line.strip() == "```":
            parts.append(("code block", "\n".join(text.rstrip() for text in block).strip("\n")))
            block = None
        elif block is not None:
            block.append(line[indent:])
        elif line.lstrip().startswith("```"):
            block, indent = [], len(line) - len(line.lstrip())
        elif found := re.match(r"(#{1,6}) (.*)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", found[2])
            parts.append((f"heading {len(found[1])}", text))
    assert block is None, "a fence is never closed"
    return parts


def test_headings_and_code_blocks_of_every_page_are_those_of_its_source(site: Path) -> None:
    wrong = {}
    for page in _pages():
        file = re.sub(r"(^|/)README\.md$", r"\1index.md", page)
        shown = rendering.built((site / file).with_suffix(".html").read_text(), page)
        built = [(part.kind, part.text) for part in shown if part.kind.startswith(("heading", "code"))]
        written = _written((PROJECT / page).read_text())
        if built != written or not built:
            wrong[page] = [pair for pair in zip_longest(built, written) if pair[0] != pair[1]]
    assert wrong == {}


_EXTENSIONS = ["toc", "tables", "attr_list", "pymdownx.highlight", "pymdownx.superfences", "sane_lists"]


def compare(markdown: str) -> str:
    html = Markdown(extensions=_EXTENSIONS).convert(in_dialect(markdown))
    source, shown = rendering.expected(markdown, "p.md"), rendering.built(f"<article>{html}</article>", "p.html")
    return rendering.difference("p.md", source, shown)


EQUAL = {
    "a fence with a mark": "# a\n\n```sh no-test\n# b\n```\n\n## c",
    "a fence in a quotation": "> ```text screen\n> code\n> ```",
    "a fence with tildes": "~~~sh no-test\n```\n~~~",
    "a fence directly below text": "x\n```sh no-test\ny\n```\nz",
    "a mark in code": "````text\n```sh no-test\n```\n````",
    "a link to another page": "see [a `b`](b.md#c)",
    "a table": "| a | b |\n|---|--:|\n| `x` | y |",
    "a list in a list": "- a\n    - b\n- c",
}
DIFFERENT = {
    "code in a list item with three spaces": ("1. one\n\n   ```\n   code\n   ```\n\n2. two", 3),
    "a list in a list with two spaces": ("- a\n  - b\n- c", 2),
    "a list directly below a paragraph": ("# a\n\nsome text\n- one", 3),
    "a pipe in the code of a table": ("| a | b |\n|---|---|\n| `x|y` | z |", 3),
    "a fence that is never closed": ("text\n\n```\nx", 3),
    "a heading in an element": ("<div>\n\n# x\n\n</div>", 3),
}


@pytest.mark.parametrize("markdown", EQUAL.values(), ids=EQUAL)
def test_a_page_that_both_parsers_read_alike_has_no_difference(markdown: str) -> None:
    assert compare(markdown) == ""


@pytest.mark.parametrize(("markdown", "line"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_page_that_both_parsers_read_differently_is_named_with_the_line(markdown: str, line: int) -> None:
    assert compare(markdown).startswith(f"p.md:{line}: written: ")


@pytest.mark.parametrize(
    "site",
    [
        "<h2>a</h2><pre>x</pre>",
        "<h1>a</h1><pre>y</pre>",
        "<pre>x</pre><h1>a</h1>",
        "<h1>a</h1>",
        "<h1>a</h1><pre>x</pre>b",
    ],
    ids=["another level", "another text", "another order", "a missing block", "one more text"],
)
def test_another_heading_or_code_block_is_a_difference(site: str) -> None:
    source = rendering.expected("# a\n\n```\nx\n```\n", "p.md")
    assert rendering.difference("p.md", source, rendering.built(f"<article>{site}</article>", "p.html")) != ""


def test_a_page_that_is_not_rendered_as_written_fails_the_build(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for page in (*PAGES, "mkdocs.yml"):
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (PROJECT / page).is_dir() else shutil.copy)(PROJECT / page, root / page)
    broken = root / "docs/use/chat.md"
    lines = broken.read_text().rstrip("\n").split("\n")
    broken.write_text("\n".join([*lines, "", "Some text", "- and a list without a blank line before it", ""]))
    done = build(tmp_path / "site", root)
    assert done.returncode == 1
    assert f"docs/use/chat.md:{len(lines) + 2}: written: text 'Some text'; on the site: text 'Some text - and" in (
        done.stderr
    )
