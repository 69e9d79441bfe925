"""Which packages of tools and commands are installed, by their entry points.

Read from metadata alone: nothing of a package is imported here, because whoever installed one has
not enabled it yet. What the metadata say is not to be trusted, so each entry is good, or has a
problem in one sentence; none stops the others. Slow: only for who lists tools, or misses one.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Literal

import msgspec

from callgate import shipped
from callgate.redaction.texts import redact

Group = Literal["callgate.tools", "callgate.commands"]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_SHOWN = 80
"""Characters that are shown of a name from metadata."""
_LARGEST = 100_000
"""Characters of entry points that one package may have."""
_NAMELESS = "a package without a name"
_SHIPPED = {
    "callgate.tools": {each.name: each.entry for each in shipped.PACKS},
    "callgate.commands": shipped.COMMANDS,
}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point of an installed package."""

    name: str
    value: str = ""
    """`module:attribute`."""
    package: str
    """What brings it, with its version, for people to read."""
    problem: str | None = None
    """Why it cannot be used."""


def installed(group: Group) -> list[Entry]:
    """Those of a group that we do not ship, by name."""
    shipped_here = _SHIPPED[group]
    others = [
        each
        for each in _entries(group)
        if shipped_here.get(each.name) != each.value or each.problem
    ]
    judged = _without_clashes(others, shipped_here)
    return sorted(judged, key=lambda each: (each.name, each.package))


def why(error: BaseException) -> str:
    """What foreign code raised, in one line."""
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
    except Exception:  # metadata that cannot be read
        return ""


def _parsed(package: metadata.Distribution, text: str, group: Group) -> Iterator[Entry]:
    try:
        if len(text) > _LARGEST:
            raise ValueError("they are too many")
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
    except Exception:  # metadata that cannot be read
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
    """`module:attribute`, of plain names."""
    module, _, attribute = value.partition(":")
    return value.isascii() and all(map(str.isidentifier, (*module.split("."), attribute)))


def _without_clashes(entries: Iterable[Entry], ours: dict[str, str]) -> Iterator[Entry]:
    """Nobody takes a name of ours, and of two who want one neither gets it."""
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
