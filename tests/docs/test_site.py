"""The documentation as a site: every link leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_LOADED = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="?((?:https?:)?//[^" >]+)')


def build(site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.site", str(site)], cwd=PROJECT, capture_output=True, text=True, timeout=100
    )


def test_the_site_has_no_broken_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert (built.returncode, built.stderr) == (0, "")
    pages = list(tmp_path.rglob("*.html"))
    assert {tmp_path / "index.html", tmp_path / "docs/reference/settings.html"} <= {*pages}
    assert {page.name: found for page in pages if (found := _LOADED.findall(page.read_text()))} == {}
