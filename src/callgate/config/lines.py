"""On which line of a TOML file a key stands: the parser does not say, and people need it.

It reads the file that `tomllib` has already accepted, so it need not judge it. A key inside
a multi-line value may be off by that value; the file and the table are always right.

tomlkit would not help: it keeps no line numbers, and parses 100 times as slowly as `tomllib`, at
every start.
"""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*([A-Za-z0-9_.\-"' ]+?)\s*=""")
_STEP = re.compile(r"""[^.\s"'\[\]]+|"[^"]*"|'[^']*'""")

Path = tuple[str | int, ...]


def key_lines(text: str) -> dict[Path, int]:
    """Every table and key of the text, as a path, with the line on which it begins."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None:
            table = _steps(header[2])
            if header[1] == "[[":
                index = counts.get(table, 0)
                counts[table] = index + 1
                table = (*table, index)
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key is not None:
            lines.setdefault((*table, *_steps(key[1])), number)
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of a path, or of the first thing in it, or of the nearest that contains it."""
    inside = [line for each, line in lines.items() if each[: len(path)] == path]
    if path and path not in lines and inside:
        return min(inside)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def read_path(text: str) -> Path:
    """A path as msgspec writes it in its errors: `$.policy.rules[0].decision`."""
    found = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", text)
    return tuple(name if name else int(index) for name, index in found)


def _steps(text: str) -> Path:
    return tuple(step.strip("\"'") for step in _STEP.findall(text))
