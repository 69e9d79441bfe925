"""Mistakes in settings: the line of a key, the valid values, and a suggestion.

    Invalid enum value 'alow' - at `$.mcp[...].profile`
    --> mcp.files.profile: 'alow' is not one of workspace, open

msgspec names neither the entries of a table of tables nor the valid values; both are looked up in
the types of the settings. `key_lines` finds lines in a file that `tomllib` has accepted, because
`tomllib` reports none. A key inside a multi-line value may be off by that value; file and table are
always right. tomlkit has no line numbers either, and parses 100 times as slowly. Pure.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import msgspec

from callgate.core.texts import nearest

Path = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*([A-Za-z0-9_.\-"' ]+?)\s*=""")
_KEY_STEP = re.compile(r"""[^.\s"'\[\]]+|"[^"]*"|'[^']*'""")
_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]|(\[\.\.\.\])")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`\Z")
_MOST_KEYS = 12
"""Maximum number of keys to list if none is similar to an unknown one."""
_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def key_lines(text: str) -> dict[Path, int]:
    """Return every table and key of the text, as a path, with the line on which it begins."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None:
            table = _key_steps(header[2])
            if header[1] == "[[":
                index = counts.get(table, 0)
                counts[table] = index + 1
                table = (*table, index)
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key is not None:
            lines.setdefault((*table, *_key_steps(key[1])), number)
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of a path, or of its first member, or of the nearest path that contains
    it.
    """
    inside = [line for each, line in lines.items() if each[: len(path)] == path]
    if path and path not in lines and inside:
        return min(inside)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def _key_steps(text: str) -> Path:
    return tuple(step.strip("\"'") for step in _KEY_STEP.findall(text))


def explain(
    error: msgspec.ValidationError,
    tree: Mapping[str, Any],
    kind: type[msgspec.Struct],
    others: Collection[str] = (),
) -> tuple[Path, str]:
    """Return the path of a mistake, and a description with the valid values.

    `others`: top-level keys that other code reads.
    """
    message, _, location = str(error).partition(" - at `")
    path, expected, value = _follow(location, tree, kind)
    where = ".".join(map(str, path))
    if (unknown := _UNKNOWN.search(message)) is not None:
        return (*path, unknown[1]), _unknown_key(
            unknown[1], where, expected, () if where else others
        )
    if (missing := _MISSING.search(message)) is not None:
        return path, f"{where or 'the file'} needs the key {missing[1]!r}"
    described = _described(message, expected, value)
    return path, f"{where}: {described}" if where else described


def _unknown_key(key: str, where: str, expected: Any, others: Collection[str]) -> str:
    inside = f" in {where}" if where else ""
    if key == "tool_confirmation":
        return "unknown key 'tool_confirmation': the key is [policy]"
    known = [name for each in _branches(expected) for name in _fields(each) if name != "parts"]
    known += others
    near = nearest(key, known)
    if near is not None:
        return f"unknown key {key!r}{inside}; did you mean {near!r}?"
    listed = ", ".join(known) if 0 < len(known) <= _MOST_KEYS else ""
    return f"unknown key {key!r}{inside}" + (f"; valid keys are {listed}" if listed else "")


def _described(message: str, expected: Any, value: Any) -> str:
    """Describe the problem of a value, and the valid ones."""
    choices = [*_choices(expected)]
    if choices and (message.startswith("Invalid enum value") or _EXPECTED.match(message)):
        valid = ", ".join(choices) + _alternatives(expected)
        near = nearest(value, choices) if isinstance(value, str) else None
        return f"{value!r} is not one of {valid}" + (f"; did you mean {near!r}?" if near else "")
    if (found := _EXPECTED.match(message)) is not None:
        wanted = " or ".join(_WORDS.get(each, each) for each in found[1].split(" | "))
        return f"expected {wanted}, got {_WORDS.get(found[2], found[2])}"
    return message


def _alternatives(expected: Any) -> str:
    """Return the other kinds of values that a key with choices accepts."""
    others = {"a list": list, "a table": dict}
    taken = [
        words
        for words, kind in others.items()
        if any(_container(each) is kind for each in _branches(expected))
    ]
    return "".join(f", or {words}" for words in taken)


def _follow(location: str, value: Any, expected: Any) -> tuple[Path, Any, Any]:
    """Return the path that msgspec reports, with the expected type and the value."""
    path: list[str | int] = []
    for name, index, entry in _STEP.findall(location):
        if entry:
            name, expected = _wrong_entry(value, expected)
            if not name:
                continue
        elif name:
            expected = _type_of_field(expected, name)
        else:
            expected = _type_of_item(expected)
        step: str | int = name or int(index)
        path.append(step)
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            value = None
    return tuple(path), expected, value


def _wrong_entry(table: Any, expected: Any) -> tuple[str, Any]:
    """Return the first entry of a table of tables that cannot be converted."""
    for each in _branches(expected):
        if _container(each) is not dict or not isinstance(table, dict):
            continue
        kind = (*typing.get_args(each), Any, Any)[1]
        for name, value in table.items():
            try:
                msgspec.convert(value, kind, strict=True)
            except msgspec.ValidationError:
                return name, kind
    return "", Any


def _type_of_field(expected: Any, name: str) -> Any:
    for each in _branches(expected):
        if name in _fields(each):
            return typing.get_type_hints(each)[name]
        if _container(each) is dict and typing.get_args(each):
            return typing.get_args(each)[1]
    return Any


def _type_of_item(expected: Any) -> Any:
    for each in _branches(expected):
        if _container(each) is list and typing.get_args(each):
            return typing.get_args(each)[0]
    return Any


def _branches(expected: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself."""
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        yield from typing.get_args(expected)
    else:
        yield expected


def _container(kind: Any) -> type | None:
    origin = typing.get_origin(kind) or kind
    if origin in (list, tuple, set, frozenset):
        return list
    return dict if origin is dict or _fields(kind) else None


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(getattr(kind, "__struct_fields__", ()))


def _choices(expected: Any) -> Iterator[str]:
    for each in _branches(expected):
        if typing.get_origin(each) is Literal:
            yield from map(str, typing.get_args(each))
        elif isinstance(each, type) and issubclass(each, enum.Enum):
            yield from (str(member.value) for member in each)
