"""What the dashboard's files must be like, whether a browser is here or not."""

from __future__ import annotations

import re
from pathlib import Path

import callgate

STATIC = Path(callgate.__file__).parent / "features/web/static"
FILES = [path for path in STATIC.rglob("*") if path.suffix in (".html", ".js", ".mjs", ".css", ".svg")]
OWN = [path for path in FILES if "vendor" not in path.parts]


def test_the_page_weighs_less_than_220_kilobytes() -> None:
    assert 0 < sum(path.stat().st_size for path in FILES) < 220_000


def test_no_text_ever_becomes_markup_or_code() -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert [path.name for path in OWN if re.search(ways, path.read_text())] == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    names = re.compile(r"""(?:src|href|from|import\()\s*=?\s*["'](?:https?:)?//""")
    assert [path.name for path in FILES if names.search(path.read_text())] == []


def test_every_import_leads_to_a_file() -> None:
    missing = []
    for path in FILES:
        if path.suffix in (".js", ".mjs"):
            for name in re.findall(r'^(?:import|export|\}).*?from ?"([^"]+)"', path.read_text(), re.M):
                if not (path.parent / name).is_file():
                    missing.append((path.name, name))
    assert missing == []


def test_the_licences_of_what_is_not_ours_come_along() -> None:
    vendored = {path.name for path in FILES if "vendor" in path.parts}
    named = (STATIC / "vendor/LICENSES").read_text()
    assert vendored == {"preact.mjs", "hooks.mjs", "htm.mjs"}
    assert [name for name in sorted(vendored) if name not in named] == []
