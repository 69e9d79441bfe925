"""Skill files on disk: locations, front matter, and broken skills.

    <home>/skills/NAME/SKILL.md               the user's own; links are followed
    <workspace>/.callgate/skills/NAME/...     inside the workspace boundary: no link leads out

    ---
    description: >
      Looks at a change
      before it is sent.
    delegate: true
    ---
    The text itself.

A file is read again only after a change of its `stat`. That check only saves an open; the
validation uses the opened file. A known key must be understood completely, otherwise the file is
refused with a reason; other keys may contain anything, even invalid YAML. PyYAML parses quoted
texts and blocks up to their events, so no alias, anchor, tag or type is resolved, and `no` stays
the text `no`. Unquoted text is literal: a colon in it (`description: use it when: ...`) is an error
in YAML, but common in skills.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Collection
from typing import Literal, NamedTuple, Protocol

import msgspec

from callgate.core.errors import ToolError
from callgate.core.sessions import Root
from callgate.core.texts import escape, is_seen
from callgate.workspace.opening import READ, best_opener
from callgate.workspace.wall import Wall

MOST_LINES = 200
MOST_CHARS = 16_000
_MARK = "---"

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?:[ ]+(.*))?\Z")
_BLOCK = re.compile(r"[>|][+-]?(?:[ ]+#.*)?\Z")
_COMMENT = re.compile(r"(?:\A|(?<=[ ]))#.*\Z")
_NOT_PLAIN = tuple("&*!|>%@`[]{},'\"")
"""First characters of values that are not plain text."""
_ONE_PAIR = 8
"""Events of a document that is a mapping of one key to one scalar."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class FrontMatterError(ValueError):
    """Missing or unreadable front matter; the text has the reason."""


class Document(NamedTuple):
    fields: dict[str, str]
    quoted: frozenset[str]
    """Fields in quotes, which are always texts."""
    body: str


def parse_document(text: str, keys: Collection[str]) -> Document:
    """Split a text into front matter, restricted to these keys, and body."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip(" ") != _MARK:
        raise FrontMatterError("it does not begin with a line ---")
    end = next((at for at, line in enumerate(lines) if at and line.rstrip(" ") == _MARK), None)
    if end is None:
        raise FrontMatterError("its front matter has no end: a second line --- is missing")
    head = lines[1:end]
    if len(head) > MOST_LINES or sum(map(len, head)) > MOST_CHARS:
        raise FrontMatterError(
            f"its front matter has more than {MOST_LINES} lines or {MOST_CHARS:,} characters"
        )
    fields, quoted = {}, set()
    for key, first, more, number in _entries(head):
        if key not in keys:
            continue
        if key in fields:
            raise FrontMatterError(f"line {number}: {key} is there twice")
        try:
            fields[key], in_quotes = _value(first, more)
        except FrontMatterError as error:
            raise FrontMatterError(f"line {number}: {key}: {error}") from None
        if in_quotes:
            quoted.add(key)
    return Document(fields, frozenset(quoted), "\n".join(lines[end + 1 :]).strip("\n").rstrip())


Entry = tuple[str, str, list[str], int]
"""A key, the text after it, the indented lines below it, and its line in the file."""


def _entries(head: list[str]) -> list[Entry]:
    found: list[Entry] = []
    for number, line in enumerate(head, 2):
        if not line.strip() or line.startswith((" ", "\t", "- ")) or line == "-":
            if found:
                found[-1][2].append(line)
            elif line.strip():
                raise FrontMatterError(f"line {number} belongs to no key")
        elif not line.startswith("#"):
            key = _KEY.match(line)
            if key is None:
                raise FrontMatterError(f"line {number} is not `key: value`")
            found.append((key[1], (key[2] or "").strip(" "), [], number))
    return found


def _value(first: str, more: list[str]) -> tuple[str, bool]:
    if _BLOCK.match(first):
        text = _scalar("\n".join([first, *more]), "its lines are not indented alike")
        return text.strip("\n"), False
    lines = [line for line in more if line.strip()]
    if first.startswith(("'", '"')):
        if lines:
            raise FrontMatterError("a text in quotes must end in its line")
        return _scalar(first, "its quotes do not close, or something follows them"), True
    return _plain([first, *lines]), False


def _scalar(written: str, problem: str) -> str:
    """Return a quoted text or a block. Raises the problem if it is not exactly one scalar."""
    import yaml  # type: ignore[import-untyped]  # lazy: 20 ms, many need none  # noqa: PLC0415

    try:
        # The key is part of the parsed text, because the indentation of a block depends on it.
        events = list(yaml.parse(f"key: {written}\n", Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        found = str(getattr(error, "problem", ""))
        raise FrontMatterError(found if "escape" in found else problem) from None
    scalars = [event.value for event in events if isinstance(event, yaml.ScalarEvent)]
    if len(scalars) != 2 or len(events) != _ONE_PAIR:
        raise FrontMatterError(problem)
    text = str(scalars[1])
    if _SURROGATE.search(text):
        raise FrontMatterError("it has a lone surrogate")
    return text


def _plain(lines: list[str]) -> str:
    """Return unquoted text, joined with its continuation lines."""
    words = []
    for line in lines:
        if line.startswith(("\t", "-")):
            raise FrontMatterError("it is a list or begins with a tab, and must be text")
        words.append(_COMMENT.sub("", line.strip(" ")).rstrip(" "))
    text = " ".join(filter(None, words))
    if text.startswith(_NOT_PLAIN) or text.startswith(("- ", "? ")):
        raise FrontMatterError(f"it begins with {text[0]}, and must be text: put it in quotes")
    return text


FILE = "SKILL.md"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = frozenset({"skill", "tool"})
"""`/skill NAME` and `/tool ...` belong to the surfaces: no skill has these names."""
MAX_BYTES = 128 * 1024
"""Maximum bytes of one file of a skill."""
MAX_DESCRIPTION = 1_024
MOST = 1_000
"""Maximum skills in one directory."""
_log = logging.getLogger("callgate.skills")

_KEYS = ("name", "description", "delegate")
_SETTLED_NS = 2_000_000_000
"""Age of a file after which a change is visible in its timestamps."""

Origin = Literal["user", "workspace"]
Looks = tuple[int, ...]


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    """One line of visible characters."""
    directory: str
    origin: Origin
    delegate: bool = False
    """Whether a sub-agent does the work."""


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The name of its directory, in visible characters."""
    directory: str
    origin: Origin
    why: str


class SkillUnreadable(Exception):
    """A skill exists, but its text is unavailable; the message has the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"The skill {name} cannot be used: {why}.")
        self.name = name
        self.why = why


class SkillDirectory(Protocol):
    """A directory that contains skills."""

    path: str
    origin: Origin

    def open(self, relative: str) -> int:
        """Return a descriptor for reading. Raises `OSError` or a `ToolError`."""
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
    """The directory of one skill of the user: no path leads out of it."""

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
    """The skills of one directory, as of the last look."""

    def __init__(self, root: SkillDirectory) -> None:
        self.root = root
        self._seen: dict[str, _Seen] = {}
        self._warned: dict[str, str] = {}
        """By directory: the problem in the last warning."""

    def look(self) -> list[Skill | Broken]:
        """Return the present skills by name. Reads only files that look changed."""
        names, problem = self._names()
        self._seen = seen = {name: self._look_at(name) for name in names[:MOST]}
        found = _apart([each.found for each in seen.values()])
        if len(names) > MOST:
            problem = f"it has more than {MOST:,} skills; the others are ignored"
        if problem is not None:
            found.append(self._broken("", problem))
        self._warn({each.directory: each.why for each in found if isinstance(each, Broken)})
        return found

    def _warn(self, broken: dict[str, str]) -> None:
        """Log each problem once, until it changes."""
        warned, self._warned = self._warned, broken
        for directory, why in broken.items():
            if warned.get(directory) != why:
                _log.warning("skipped the skill in %s: %s", directory, why)

    def read(self, name: str) -> Document:
        """Return the present text of a skill. Raises `SkillUnreadable`."""
        return parse_skill(name, read_text(self.root, os.path.join(name, FILE), name))

    def _names(self) -> tuple[list[str], str | None]:
        """Return directories that could be skills, and the problem of listing them."""
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
    """Mark the second of two skills as broken whose names differ only in case."""
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
    """Raise `SkillUnreadable` for an invalid name."""
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
    """Read a file of a skill: regular, of bounded size, UTF-8. Raises `SkillUnreadable`."""
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
    """Return a text on one line, with invisible characters escaped."""
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
    "file_not_found": "it does not exist",
    "workspace_escape": "it is outside the workspace",
}
"""Messages by reason of a refusal, for reasons where the path would add nothing."""
