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
    found = [entry for each in _packages() for entry in _entries(each, group)]
    own = _SHIPPED[group]
    others = [each for each in found if own.get(each.name) != each.value or each.problem]
    return sorted(_without_clashes(others, own), key=lambda each: (each.name, each.package))


def why(error: BaseException) -> str:
    """What foreign code raised, in one line."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _packages() -> Iterator[metadata.Distribution]:
    """Each once: of two versions Python finds the first."""
    seen: set[str] = set()
    for each in metadata.distributions():
        name = _name_of(each)
        folded = re.sub(r"[-_.]+", "-", name).lower()
        if not name or folded not in seen:
            seen.add(folded)
            yield each


def _name_of(package: metadata.Distribution) -> str:
    try:
        return str(package.metadata["Name"] or "")
    except Exception:  # metadata that cannot be read
        return ""


def _entries(package: metadata.Distribution, group: Group) -> Iterator[Entry]:
    about = _about(package)
    try:
        text = package.read_text("entry_points.txt") or ""
        if group not in text:
            return
        if len(text) > _LARGEST:
            raise ValueError("its entry points are too many")
        read = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        read.optionxform = str  # type: ignore[method-assign, assignment]
        read.read_string(text)
        pairs = list(read.items(group)) if read.has_section(group) else []
    except (OSError, ValueError, configparser.Error) as error:
        problem = f"its entry points cannot be read: {why(error)}"
        yield Entry(name=about, package=about, problem=problem)
        return
    for name, value in pairs:
        yield _entry(name, value.strip(), about)


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


def _without_clashes(entries: Iterable[Entry], own: dict[str, str]) -> Iterator[Entry]:
    """Nobody takes a name of ours, and of two who want one neither gets it."""
    all_of_them = list(entries)
    for entry in all_of_them:
        if entry.problem is None and entry.name in own:
            yield msgspec.structs.replace(entry, problem="callgate itself has that name")
            continue
        rivals = [each.package for each in all_of_them if each.name == entry.name]
        if entry.problem is None and len(rivals) > 1:
            problem = f"several packages have that name: {', '.join(sorted(rivals))}"
            yield msgspec.structs.replace(entry, problem=problem)
        else:
            yield entry
