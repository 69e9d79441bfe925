"""What a docstring says about a function and about each of its parameters.

Reads the three common styles:

    Args:                    Parameters                :param name: What it is.
        name (str): What         ----------            :type name: str
            it is.               name : str
                                     What it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import msgspec

_PARAMETER_SECTIONS = frozenset(
    {
        "args",
        "arguments",
        "parameters",
        "params",
        "keyword args",
        "keyword arguments",
        "other parameters",
        "attributes",
    }
)
_SECTIONS = _PARAMETER_SECTIONS | frozenset(
    {"returns", "return", "yields", "yield", "raises", "warns", "receives", "see also"}
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")
_SPHINX_PARAMETER = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})


class Docstring(msgspec.Struct, frozen=True):
    description: str = ""
    """Everything before the first section, paragraphs kept."""
    parameters: dict[str, str] = {}


def parse_docstring(text: str | None) -> Docstring:
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((n for n in range(len(lines)) if _opens_section(lines, n)), len(lines))
    return Docstring("\n".join(lines[:start]).strip(), dict(_parameters(lines, start)))


def _opens_section(lines: list[str], number: int) -> bool:
    return bool(_SPHINX_FIELD.match(lines[number])) or _section(lines, number) is not None


def _section(lines: list[str], number: int) -> str | None:
    """The lower-case title of the section whose heading stands in this line."""
    line = lines[number]
    title = line.rstrip(" :").lower()
    if title not in _SECTIONS:
        return None
    is_underlined = number + 1 < len(lines) and _is_rule(lines[number + 1])
    return title if is_underlined or line.rstrip().endswith(":") else None


def _is_rule(line: str) -> bool:
    return set(line.strip()) == {"-"}


def _parameters(lines: list[str], number: int) -> Iterator[tuple[str, str]]:
    while number < len(lines):
        if field := _SPHINX_FIELD.match(lines[number]):
            words, number = _indented(lines, number + 1)
            if field[1] in _SPHINX_PARAMETER and field[2]:
                yield field[2].split()[-1].lstrip("*"), _joined(field[3], words)
            continue
        title = _section(lines, number)
        number += 1
        if title not in _PARAMETER_SECTIONS:
            continue
        if number < len(lines) and _is_rule(lines[number]):
            number += 1
            while number < len(lines) and _section(lines, number) is None:
                entry = _NUMPY_ENTRY.match(lines[number])
                words, number = _indented(lines, number + 1)
                for name in entry[1].split(",") if entry else ():
                    yield name.strip(" *"), _joined("", words)
        else:
            body, number = _indented(lines, number)
            yield from _google_entries(body)


def _google_entries(body: list[str]) -> Iterator[tuple[str, str]]:
    lines = inspect.cleandoc("\n".join(["", *body])).splitlines()
    number = 0
    while number < len(lines):
        entry = _GOOGLE_ENTRY.match(lines[number])
        words, number = _indented(lines, number + 1)
        if entry:
            yield entry[1], _joined(entry[2], words)


def _indented(lines: list[str], number: int) -> tuple[list[str], int]:
    """The lines from here on that are indented or blank, and where they end."""
    end = number
    while end < len(lines) and (not lines[end] or lines[end][0].isspace()):
        end += 1
    return lines[number:end], end


def _joined(first: str, continuation: list[str]) -> str:
    return " ".join(line.strip() for line in (first, *continuation) if line.strip())
