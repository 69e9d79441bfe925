"""Compare two moments of a workspace: the net changes of recorded calls, and their contents.

    changes of calls --> net --> one `Difference` per path --> diff of its text, or a description

Contents come from the history alone, or from a file of the workspace with exactly the recorded
hash: later changes by other programs do not appear. Reads only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

import msgspec

from callgate.redaction.texts import redact, redact_lines
from callgate.workspace.excerpts import diff
from callgate.workspace.paths import opening, readable, sayable
from callgate.workspace.undo.history import SHOWN, History
from callgate.workspace.undo.records import Change, State, digest_of
from callgate.workspace.undo.steps import relevant
from callgate.workspace.undo.tracks import traced

Kind = Literal["created", "changed", "deleted", "renamed", "mode"]
MOST_SHOWN = 200
"""Maximum number of files with a diff; others are listed."""


class Difference(NamedTuple):
    """One path at two moments."""

    first: str | None
    """Path at the first moment; None if there was nothing."""
    last: str | None
    before: State | None
    after: State | None

    @property
    def path(self) -> str:
        path = self.last or self.first
        assert path is not None
        return path

    @property
    def kind(self) -> Kind:
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        if self.first != self.last:
            return "renamed"
        is_same_content = (
            self.before.kind == self.after.kind
            and self.before.sha256 == self.after.sha256
            and self.before.mode != self.after.mode
            and (self.before.sha256 is not None or self.before.kind == "directory")
        )
        return "mode" if is_same_content else "changed"


def net(changes: Iterable[Change]) -> list[Difference]:
    """Return the differences that changes made together, sorted by path. Pure."""
    chosen = list(changes)
    found: list[Difference] = []
    for track in relevant(traced(chosen), chosen):
        newest, oldest = track.changes[0], track.changes[-1]
        first = None if oldest.before is None else track.first or oldest.real
        last = None if newest.after is None else track.real
        each = Difference(first, last, oldest.before, newest.after)
        if not _is_nothing(each):
            found.append(each)
    return sorted(_renamed(found), key=lambda each: each.path)


def _is_nothing(each: Difference) -> bool:
    before, after = each.before, each.after
    if before is None or after is None:
        return before is after
    return (
        each.first == each.last
        and before.kind == after.kind
        and before.mode == after.mode
        and before.sha256 == after.sha256
        and (before.sha256 is not None or before.kind == "directory")
        and not before.attributes
    )


def _renamed(found: Sequence[Difference]) -> list[Difference]:
    """Join the removal of a name and the creation of another one for the same file."""
    removed = {
        each.before.node: each
        for each in found
        if each.after is None and each.before is not None and each.before.node is not None
    }
    joined: list[Difference] = []
    used: set[str] = set()
    for each in found:
        node = each.after.node if each.before is None and each.after is not None else None
        source = removed.get(node) if node is not None and node not in used else None
        if node is None or source is None or source.before is None or each.after is None:
            joined.append(each)
            continue
        if source.before.kind != each.after.kind:
            joined.append(each)
            continue
        used.add(node)
        joined.append(Difference(source.first, each.last, source.before, each.after))
    sources = {id(removed[node]) for node in used}
    return [each for each in joined if id(each) not in sources]


class Contents:
    """Finds the content of recorded states: in the history, else in the workspace by its hash."""

    def __init__(self, history: History, changes: Iterable[Change]) -> None:
        self._history = history
        self._stored: dict[str, State] = {}
        self._paths: dict[str, list[str]] = {}
        for each in changes:
            for state in (each.before, each.after):
                if state is None or state.sha256 is None or state.kind != "file":
                    continue
                if state.kept or state.body or state.stored:
                    self._stored.setdefault(state.sha256, state)
            if each.after is not None and each.after.sha256 is not None:
                self._paths.setdefault(each.after.sha256, []).append(each.real)

    def open(self, state: State, path: str | None = None) -> int | None:
        """Open the content of a file; None if it is not, or no longer, available."""
        for source in self._sources(state, path):
            file = open_regular(source)
            if file is None:
                continue
            if state.sha256 is None or _has_hash(file, state):
                return file
            os.close(file)
        return None

    def read(self, state: State, path: str | None = None, *, most: int = SHOWN) -> bytes | None:
        """Return the content of a file or the target of a link; None if it is not available, or
        larger than `most`."""
        if state.kind == "link":
            return self._target(state, path)
        if state.kind != "file" or state.size > most:
            return None
        file = self.open(state, path)
        if file is None:
            return None
        with os.fdopen(file, "rb") as opened:
            return opened.read(most + 1)[:most]

    def _target(self, state: State, path: str | None) -> bytes | None:
        found = self._history.content(state)
        if found is not None or path is None:
            return found
        try:
            target = os.readlink(os.fsencode(path))
        except OSError:
            return None
        return target if sha256(target).hexdigest() == state.sha256 else None

    def _sources(self, state: State, path: str | None) -> list[str]:
        found = []
        known = state if state.sha256 is None else self._stored.get(state.sha256, state)
        for each in (state, known):
            name = each.body or each.stored
            if name is not None:
                found.append(self._history.stored_path(name))
            elif each.kept and each.sha256 is not None:
                found.append(self._history.blobs.path(each.sha256))
        if state.sha256 is not None:
            found += [*([] if path is None else [path]), *self._paths.get(state.sha256, ())]
        return list(dict.fromkeys(found))


def open_regular(path: str) -> int | None:
    """Open a regular file, without links; None if there is none."""
    try:
        with opening():
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def _has_hash(file: int, state: State) -> bool:
    if os.fstat(file).st_size != state.size:
        return False
    is_same = digest_of(file) == state.sha256
    os.lseek(file, 0, os.SEEK_SET)
    return is_same


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One changed path, for a person. Texts have no secrets."""

    path: str
    kind: Kind
    first: str | None = None
    """The earlier path of a renamed one."""
    type: str
    """`file`, `directory`, `link` or `other`."""
    mode_before: str | None = None
    mode_after: str | None = None
    size_before: int | None = None
    size_after: int | None = None
    target_before: str | None = None
    """Target of a link."""
    target_after: str | None = None
    diff: str | None = None
    """Unified diff of a text file; None: `note` gives the reason."""
    note: str | None = None


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between two moments."""

    workspace: str
    count: int
    files: list[Shown]
    truncated: bool = False
    """Whether `files` lists only the first ones."""
    damaged: int = 0
    """Unreadable lines of the history."""

    @property
    def text(self) -> str:
        """The differences as one text: diffs, and a line for each other difference."""
        texts = [_as_text(each) for each in self.files]
        if self.truncated:
            texts.append(f"[{self.count - len(self.files)} more files are not shown]")
        if self.damaged:
            texts.append(f"[{self.damaged} damaged lines of the history were ignored]")
        return "\n".join(texts)


def describe(
    history: History, changes: Sequence[Change], workspace: str, *, known: Iterable[Change] = ()
) -> ChangeSet:
    """Describe the net differences of changes. `known`: other changes that may store the contents,
    for example later ones."""
    contents = Contents(history, [*changes, *known])
    found = net(changes)
    root = os.path.realpath(workspace).rstrip("/") + "/"
    return ChangeSet(
        workspace=sayable(workspace),
        count=len(found),
        files=[_shown(contents, each, root) for each in found[:MOST_SHOWN]],
        truncated=len(found) > MOST_SHOWN,
    )


def _shown(contents: Contents, each: Difference, root: str) -> Shown:
    before, after = each.before, each.after
    name = named(each.path, root)
    text, note = _diff(contents, each, name)
    return Shown(
        path=name,
        kind=each.kind,
        first=named(each.first, root) if each.kind == "renamed" and each.first else None,
        type=(after or before or State("other", 0)).kind,
        mode_before=None if before is None else f"{before.mode:04o}",
        mode_after=None if after is None else f"{after.mode:04o}",
        size_before=None if before is None or before.kind != "file" else before.size,
        size_after=None if after is None or after.kind != "file" else after.size,
        target_before=_target(contents, before, each.first),
        target_after=_target(contents, after, each.last),
        diff=text,
        note=note,
    )


def named(real: str, root: str) -> str:
    """Return a path for people, relative to the workspace, without secrets."""
    return redact(sayable(real.removeprefix(root)))


def _target(contents: Contents, state: State | None, path: str | None) -> str | None:
    if state is None or state.kind != "link":
        return None
    target = contents.read(state, path)
    return None if target is None else redact(sayable(os.fsdecode(target)))


_SAME: tuple[None, None] = (None, None)


def _diff(contents: Contents, each: Difference, name: str) -> tuple[str | None, str | None]:
    """Return the diff of a path, or the reason why there is none."""
    before, after = each.before, each.after
    states = [state for state in (before, after) if state is not None]
    if any(state.kind != "file" for state in states) or each.kind == "mode":
        return _SAME
    if before is not None and after is not None and before.sha256 == after.sha256:
        return _SAME if before.sha256 is not None else (None, "the content is not known")
    if any(state.size > SHOWN for state in states):
        return None, f"larger than {SHOWN // 1024 // 1024} MiB"
    old = b"" if before is None else contents.read(before, each.first)
    new = b"" if after is None else contents.read(after, each.last)
    if old is None or new is None:
        missing = "earlier" if old is None else "later"
        why = before.why if old is None and before is not None else None
        return None, why or f"the {missing} content is not stored, or no longer"
    try:
        if b"\0" in old or b"\0" in new:
            return None, "binary"
        texts = old.decode("utf-8"), new.decode("utf-8")
    except UnicodeDecodeError:
        return None, "binary"
    shown = diff(redact_lines(texts[0]), redact_lines(texts[1]), readable(name))
    if shown:
        return shown, None
    return None, "only redacted text differs" if texts[0] != texts[1] else None


def _as_text(each: Shown) -> str:
    """Describe one path: its diff, and everything else in one line."""
    facts = []
    name = readable(each.path)
    if each.first is not None:
        name = f"{readable(each.first)} -> {name}"
    if each.type != "file":
        facts.append(each.type)
    if each.mode_before and each.mode_after and each.mode_before != each.mode_after:
        facts.append(f"mode {each.mode_before} -> {each.mode_after}")
    targets = [each.target_before, each.target_after]
    if any(targets):
        facts.append("to " + " -> ".join(readable(target) for target in targets if target))
    if each.note is not None:
        facts.append(each.note)
    if each.diff is not None and each.kind in ("created", "changed") and not facts:
        return each.diff
    verb = "changed" if each.kind == "mode" else each.kind
    line = f"{verb}: {name}" + (f" ({', '.join(facts)})" if facts else "")
    return line if each.diff is None else f"{line}\n{each.diff}"
