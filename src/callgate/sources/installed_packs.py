"""Installed packages of tools and commands, by their entry points.

The module reads metadata and imports nothing, because an installed package is not yet enabled.
Metadata are untrusted: each entry is valid or has a problem in one sentence, and none blocks the
others. Slow, so used only to list tools or to find a missing one.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Literal

import msgspec

from callgate.feature import PACK_COMMANDS, PACKS
from callgate.redaction.texts import redact

Group = Literal["callgate.tools", "callgate.commands"]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_SHOWN = 80
"""Maximum characters of a name from metadata in texts."""
_LARGEST = 100_000
"""Maximum characters of the entry points of one package."""
_NAMELESS = "a package without a name"
_SHIPPED = {
    "callgate.tools": {each.name: each.entry for each in PACKS},
    "callgate.commands": PACK_COMMANDS,
}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point of an installed package."""

    name: str
    value: str = ""
    """`module:attribute`."""
    package: str
    """Name and version of the package, for people."""
    problem: str | None = None
    """The reason for which it is unusable."""


def installed(group: Group) -> list[Entry]:
    """Return the entries of a group that callgate does not ship, by name."""
    shipped_here = _SHIPPED[group]
    others = [
        each
        for each in _entries(group)
        if shipped_here.get(each.name) != each.value or each.problem
    ]
    judged = _without_clashes(others, shipped_here)
    return sorted(judged, key=lambda each: (each.name, each.package))


def why(error: BaseException) -> str:
    """Return the exception of foreign code as one line."""
    text = " ".join(redact(str(error)).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _entries(group: Group) -> Iterator[Entry]:
    seen: set[str] = set()
    for package in metadata.distributions():
        try:
            text = package.read_text("entry_points.txt") or ""
        except (OSError, ValueError) as error:
            yield _unreadable(package, error)
            continue
        if group not in text:
            continue
        name = _name_of(package)
        folded = re.sub(r"[-_.]+", "-", name).lower()
        if name and (folded in seen or _is_shadowed(name, text)):
            continue
        seen.add(folded)
        yield from _parsed(package, text, group)


def _is_shadowed(name: str, text: str) -> bool:
    """Whether Python finds another version first."""
    try:
        return metadata.distribution(name).read_text("entry_points.txt") != text
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return False


def _name_of(package: metadata.Distribution) -> str:
    try:
        return str(package.metadata["Name"] or "")
    except Exception:  # unreadable metadata
        return ""


def _parsed(package: metadata.Distribution, text: str, group: Group) -> Iterator[Entry]:
    try:
        if len(text) > _LARGEST:
            raise ValueError("there are too many")
        read = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        read.optionxform = str  # type: ignore[method-assign, assignment]
        read.read_string(text)
        items = list(read.items(group)) if read.has_section(group) else []
    except (ValueError, configparser.Error) as error:
        yield _unreadable(package, error)
        return
    about = _about(package)
    for name, value in items:
        yield _entry(name, value.strip(), about)


def _unreadable(package: metadata.Distribution, error: Exception) -> Entry:
    about = _about(package)
    problem = f"its entry points cannot be read: {why(error)}"
    return Entry(name=about, package=about, problem=problem)


def _about(package: metadata.Distribution) -> str:
    try:
        version = str(package.metadata["Version"] or "")
    except Exception:  # unreadable metadata
        version = ""
    name = _name_of(package) or _NAMELESS
    return f"{name[:_SHOWN]} {version[:_SHOWN]}".strip()


def _entry(name: str, value: str, about: str) -> Entry:
    problem = None
    if about.startswith(_NAMELESS):
        problem = "its metadata have no name"
    elif not _NAME.match(name):
        problem = "its name must be a-z, 0-9, '_' and '-', at most 64"
    elif not _is_reference(value):
        problem = f"its entry point must be module:attribute, not {value[:_SHOWN]!r}"
    return Entry(name=name[:_SHOWN], value=value, package=about, problem=problem)


def _is_reference(value: str) -> bool:
    """Whether a value is `module:attribute`, of plain names."""
    module, _, attribute = value.partition(":")
    return value.isascii() and all(map(str.isidentifier, (*module.split("."), attribute)))


def _without_clashes(entries: Iterable[Entry], ours: dict[str, str]) -> Iterator[Entry]:
    """Mark entries that have a shipped name, or share a name, as unusable."""
    all_of_them = list(entries)
    for entry in all_of_them:
        if entry.problem is None and entry.name in ours:
            yield msgspec.structs.replace(entry, problem="callgate itself has that name")
            continue
        rivals = [each.package for each in all_of_them if each.name == entry.name]
        if entry.problem is None and len(rivals) > 1:
            problem = f"several packages have that name: {', '.join(sorted(rivals))}"
            yield msgspec.structs.replace(entry, problem=problem)
        else:
            yield entry
