"""Builds the documentation as a site: every page of the repository, each link checked.

    python -m scripts.site [DIRECTORY]      (`make docs` calls it; default .build/site)

The pages are read from a directory of links that has the same layout as the repository, so a link
leads to the same page on the site as on the repository's own web page. A broken link, a missing
anchor and a page that the navigation does not have are errors. Nothing is fetched.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    *("docs", "examples", "protocols", "benchmarks/README.md", "tests/README.md"),
    *(f"packages/client-node/{file}" for file in ("README.md", "callgate.mjs", "index.d.ts")),
    *(f"packages/tool-host-node/{file}" for file in ("README.md", "index.d.ts")),
)


def main(site: Path) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with tempfile.TemporaryDirectory() as pages:
        for page in PAGES:
            link = Path(pages, page)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(ROOT / page)
        settings = {"docs_dir": pages, "site_dir": str(site), "strict": True}
        config = load_config(str(ROOT / "mkdocs.yml"), **settings)
        try:
            build(config)
        except Abort as error:
            raise SystemExit(f"The site was not built: {error.message}") from None
    print(f"{site.resolve()}/index.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".build/site")
