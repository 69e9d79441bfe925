"""Build the documentation site, and check the links and the rendering of every page.

    python -m scripts.site [DIRECTORY]      (`make docs` calls it; default .build/site)

The pages have the same layout as in the repository, so a link leads to the same page on the site
as on the repository's own web page. A broken link, a missing anchor, a page that the navigation
omits and a page that is not rendered as written (`scripts/rendering.py`) are errors. The build
needs no network.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.structure.files import get_files, set_exclusions

from scripts import rendering

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    *("docs", "examples", "protocols", "benchmarks/README.md", "tests/README.md"),
    *(f"packages/client-node/{file}" for file in ("README.md", "callgate.mjs", "index.d.ts")),
    *(f"packages/tool-host-node/{file}" for file in ("README.md", "index.d.ts")),
)

ADVICE = (
    "mkdocs needs a blank line before a list, four spaces before all that belongs to a list item, "
    "and no | in the code of a table."
)


def main(site: Path, root: Path = ROOT) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with tempfile.TemporaryDirectory() as pages:
        for page in PAGES:
            gather(root, page, Path(pages))
        settings = {"docs_dir": pages, "site_dir": str(site), "strict": True}
        config = load_config(str(root / "mkdocs.yml"), **settings)
        try:
            build(config)
        except Abort as error:
            raise SystemExit(f"The site was not built: {error.message}") from None
        if wrong := differences(config, root, site):
            raise SystemExit(
                "\n".join(["These pages are not rendered as written:", *wrong, ADVICE])
            )
    print(f"{site.resolve()}/index.html")


def gather(root: Path, page: str, pages: Path) -> None:
    """Copy a page, or the pages of a directory, in the dialect of mkdocs. Link all other files."""
    found = root / page
    for file in sorted(found.rglob("*")) if found.is_dir() else [found]:
        target = pages / file.relative_to(root)
        if file.is_dir():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            target.write_text(in_dialect(file.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            target.symlink_to(file)


def in_dialect(markdown: str) -> str:
    """Reduce the info string of each fence to its language, the only word that mkdocs accepts."""
    lines = markdown.split("\n")
    for number, info in rendering.fences(markdown):
        language, _, marks = info.partition(" ")
        if marks:
            fence, _, _ = lines[number - 1].rpartition(info)
            lines[number - 1] = fence + language
    return "\n".join(lines)


def differences(config: MkDocsConfig, root: Path, site: Path) -> list[str]:
    """Return page, line and content of the first difference of each page."""
    found = []
    files = get_files(config)
    set_exclusions(files, config)
    for file in files.documentation_pages():
        source = rendering.expected((root / file.src_uri).read_text(encoding="utf-8"), file.src_uri)
        shown = rendering.built((site / file.dest_uri).read_text(encoding="utf-8"), file.dest_uri)
        found.append(rendering.difference(file.src_uri, source, shown))
    return [text for text in found if text]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".build/site")
