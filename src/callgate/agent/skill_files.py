"""Skills on the disk: where they lie, what each says of itself, and which are broken.

    <home>/skills/NAME/SKILL.md               the user's own; links are followed
    <workspace>/.callgate/skills/NAME/...     through the wall: no link leads out of the workspace

A file is read again only once it looks changed. Looking is one `stat` a skill: whatever that
finds decides nothing but whether the file is opened, and what is opened is what is judged.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from typing import Literal, NamedTuple, Protocol

import msgspec

from callgate.agent.front_matter import Document, FrontMatterError, parse_document
from callgate.core.errors import ToolError
from callgate.core.sessions import Root
from callgate.core.text.characters import escape, is_seen
from callgate.workspace.opening import READ, best_opener
from callgate.workspace.wall import Wall

FILE = "SKILL.md"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = frozenset({"skill", "tool"})
"""`/skill NAME` and `/tool ...` belong to the surfaces: no skill has these names."""
MAX_BYTES = 128 * 1024
"""Of one file of a skill."""
MAX_DESCRIPTION = 1_024
MOST = 1_000
"""Skills in one place."""
_log = logging.getLogger("callgate.skills")

_KEYS = ("name", "description", "delegate")
_SETTLED_NS = 2_000_000_000
"""A file younger than this may change again without looking changed."""

Origin = Literal["user", "workspace"]
Looks = tuple[int, ...]


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    """One line, in which every character is seen."""
    directory: str
    origin: Origin
    delegate: bool = False
    """It is work for a sub-agent."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Of its directory, in characters that are seen."""
    directory: str
    origin: Origin
    why: str


class SkillUnreadable(Exception):
    """There is such a skill, and its text cannot be had. The text says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"The skill {name} cannot be used: {why}.")
        self.name = name
        self.why = why


class SkillDirectory(Protocol):
    """A directory with skills in it."""

    path: str
    origin: Origin

    def open(self, relative: str) -> int:
        """A descriptor for reading; `OSError` or a `ToolError`."""
        ...


class UserSkillDirectory:
    origin: Origin = "user"

    def __init__(self, home_dir: str) -> None:
        self.path = os.path.join(home_dir, "skills")

    def open(self, relative: str) -> int:
        return os.open(os.path.join(self.path, relative), READ)


class WorkspacePlace:
    origin: Origin = "workspace"
    _INSIDE = os.path.join(".callgate", "skills")

    def __init__(self, workspace: str) -> None:
        self.path = os.path.join(workspace, self._INSIDE)
        self._wall = Wall([Root(workspace)], best_opener())

    def open(self, relative: str) -> int:
        return self._wall.open(os.path.join(self._INSIDE, relative), READ).fd


class Inside:
    """What lies in the directory of one skill of the user's: nothing leads out of it."""

    origin: Origin = "user"

    def __init__(self, skill: Skill) -> None:
        self.path = skill.directory
        self._wall = Wall([Root(skill.directory)], best_opener())

    def open(self, relative: str) -> int:
        return self._wall.open(relative, READ).fd


class _Seen(NamedTuple):
    looks: Looks | None
    settled: bool
    found: Skill | Broken


class Shelf:
    """The skills of one place, as they were when it was last looked at."""

    def __init__(self, root: SkillDirectory) -> None:
        self.root = root
        self._seen: dict[str, _Seen] = {}
        self._warned: dict[str, str] = {}
        """What was said to be wrong, by directory."""

    def look(self) -> list[Skill | Broken]:
        """All that is there now, by name. What does not look changed is not read again."""
        names, problem = self._names()
        self._seen = seen = {name: self._look_at(name) for name in names[:MOST]}
        found = _apart([each.found for each in seen.values()])
        if len(names) > MOST:
            problem = f"it has more than {MOST:,} skills; the others are left out"
        if problem is not None:
            found.append(self._broken("", problem))
        self._warn({each.directory: each.why for each in found if isinstance(each, Broken)})
        return found

    def _warn(self, broken: dict[str, str]) -> None:
        """Once for each, until it is mended or something else is wrong with it."""
        warned, self._warned = self._warned, broken
        for directory, why in broken.items():
            if warned.get(directory) != why:
                _log.warning("skipped the skill in %s: %s", directory, why)

    def read(self, name: str) -> Document:
        """A skill as it is now. Raises `SkillUnreadable`."""
        return parse_skill(name, read_text(self.root, os.path.join(name, FILE), name))

    def _names(self) -> tuple[list[str], str | None]:
        """Directories that could be skills, and what keeps us from looking."""
        if not os.path.lexists(self.root.path):
            return [], None
        try:
            fd = self.root.open(".")
            try:
                with os.scandir(fd) as entries:
                    names = [each.name for each in entries if _is_candidate(each)]
            finally:
                os.close(fd)
        except (OSError, ToolError) as error:
            return [], _why(error)
        return sorted(names), None

    def _look_at(self, name: str) -> _Seen:
        looks = _looks(os.path.join(self.root.path, name, FILE))
        before = self._seen.get(name)
        if before is not None and before.settled and before.looks == looks:
            return before
        settled = looks is not None and time.time_ns() - looks[0] > _SETTLED_NS
        return _Seen(looks, settled, self._examine(name))

    def _examine(self, name: str) -> Skill | Broken:
        try:
            check_name(name)
            fields = self.read(name).fields
        except SkillUnreadable as error:
            return self._broken(name, error.why)
        return Skill(
            name=name,
            description=shown(" ".join(fields["description"].split())),
            directory=os.path.join(self.root.path, name),
            origin=self.root.origin,
            delegate=fields.get("delegate") == "true",
        )

    def _broken(self, name: str, why: str) -> Broken:
        directory = os.path.join(self.root.path, name).rstrip("/")
        return Broken(
            name=shown(name), directory=shown(directory), origin=self.root.origin, why=why
        )


def _apart(found: list[Skill | Broken]) -> list[Skill | Broken]:
    """Of two whose names differ in capitals alone, the second is broken: no look-alikes."""
    first: dict[str, str] = {}
    skills: list[Skill | Broken] = []
    for each in found:
        if isinstance(each, Skill):
            name = first.setdefault(each.name.lower(), each.name)
            if name != each.name:
                why = f"its name differs from {name} in capitals alone"
                each = Broken(
                    name=each.name, directory=shown(each.directory), origin=each.origin, why=why
                )
        skills.append(each)
    return skills


def check_name(name: str) -> None:
    """Raises `SkillUnreadable` for what is no name of a skill."""
    if not NAME.fullmatch(name):
        why = "its name must be A-Z, a-z, 0-9, _ and -, at most 64, a letter or digit first"
        raise SkillUnreadable(shown(name), why)
    if name.lower() in RESERVED:
        raise SkillUnreadable(name, "this name is reserved")


def parse_skill(name: str, text: str) -> Document:
    """Parse a SKILL.md. Raises `SkillUnreadable`."""
    try:
        document = parse_document(text, _KEYS)
    except FrontMatterError as error:
        raise SkillUnreadable(name, str(error)) from None
    fields = document.fields
    description = fields.get("description", "").strip()
    problem = None
    if not description:
        problem = "its front matter has no description"
    elif len(description) > MAX_DESCRIPTION:
        problem = f"its description is longer than {MAX_DESCRIPTION:,} characters"
    elif fields.get("name", name) != name:
        problem = f"it calls itself {shown(fields['name'][:64])!r}, and its directory is {name!r}"
    elif fields.get("delegate", "true") not in ("true", "false") or "delegate" in document.quoted:
        problem = "delegate must be true or false"
    elif not document.body.strip():
        problem = "there is nothing below its front matter"
    if problem is not None:
        raise SkillUnreadable(name, problem)
    return document


def read_text(root: SkillDirectory, relative: str, name: str) -> str:
    """A file of a skill: regular, of bounded size, UTF-8. Raises `SkillUnreadable`."""
    file = os.path.basename(relative)
    try:
        fd = root.open(relative)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise SkillUnreadable(name, f"{shown(file)} is not a regular file")
            data = _bounded(fd)
        finally:
            os.close(fd)
    except (OSError, ToolError) as error:
        raise SkillUnreadable(name, f"{shown(file)}: {_why(error)}") from None
    if len(data) > MAX_BYTES:
        raise SkillUnreadable(name, f"{shown(file)} is larger than {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SkillUnreadable(name, f"{shown(file)} is not UTF-8 text") from None


def shown(text: str) -> str:
    """On one line, every character seen."""
    return "".join(char if is_seen(char) else escape(char) for char in text)


def _bounded(fd: int) -> bytes:
    blocks, size = [], 0
    while size <= MAX_BYTES and (block := os.read(fd, MAX_BYTES + 1 - size)):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def _is_candidate(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    return entry.is_symlink() or entry.is_dir(follow_symlinks=False)


def _looks(path: str) -> Looks | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_size,
        found.st_mode,
        found.st_dev,
        found.st_ino,
    )


def _why(error: OSError | ToolError) -> str:
    if isinstance(error, ToolError):
        return _WALL.get(error.reason or "", shown(error.message).rstrip("."))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return _WALL["file_not_found"]
    return error.strerror or "it cannot be read"


_WALL = {
    "file_not_found": "it is not there",
    "workspace_escape": "it lies outside of the workspace",
}
"""Reasons of the wall, where a name says more than its path."""
