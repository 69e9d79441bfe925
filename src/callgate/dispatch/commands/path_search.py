"""Search for the files that path rules match, so that a sandbox can withhold them from a command.

    find(rules, roots)  ->  Matches        paths to hide, paths to make read-only
                        or  PathRuleUnkept the command cannot be started

Each rule has a separate search, from the root that it is relative to. The search skips directories
in which nothing can match. A directory that matches counts with all its content. Other names of a
file count too: the target of a link that matches, and hard links in the roots.

The search never omits a match. It matches a directory that it cannot list. If too many paths
match, it matches their common directory instead. If that is the root, or if the search takes too
long, the command is refused.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import ResolvedPath
from callgate.policy.decide import PathRule
from callgate.policy.rules import is_within

MOST_ENTRIES = 500_000
MOST_SECONDS = 20.0
MOST_MASKS = 400
"""Maximum paths that are withheld from one command, because each is a mount."""


class PathRuleUnkept(ToolPermissionDenied):
    """A path rule that cannot be enforced for a command, which was not started."""

    def __init__(self, rule: PathRule, why: str) -> None:
        super().__init__(
            f"Rule: {rule.rule}. ({rule.rule.origin}) It cannot be enforced for a command: {why}.",
            reason="path_rule",
        )


class Match(msgspec.Struct, frozen=True):
    """One path that a rule withholds from a command, with all links resolved."""

    path: str
    shown: str
    """The path for the rule: relative to its root, or absolute."""
    rule: PathRule


class Matches(msgspec.Struct, frozen=True):
    matches: tuple[Match, ...] = ()

    @property
    def hidden(self) -> tuple[str, ...]:
        return tuple(sorted({each.path for each in self.matches if each.rule.hides}))

    @property
    def read_only(self) -> tuple[str, ...]:
        paths = {each.path for each in self.matches if not each.rule.hides}
        return tuple(sorted(paths.difference(self.hidden)))

    def later(self, before: Matches) -> tuple[Match, ...]:
        """Return the matches that are new since `before`, each path once."""
        known = {each.shown for each in before.matches}
        new = {each.shown: each for each in self.matches if each.shown not in known}
        return tuple(new[path] for path in sorted(new))


def find(
    rules: Sequence[PathRule], roots: Iterable[str], allowed: Sequence[ResolvedPath] = ()
) -> Matches:
    """Search all roots. `allowed`: paths that the approval of the call covers, for rules that
    require approval. Blocks, so it belongs in a thread."""
    real = tuple(dict.fromkeys(os.path.realpath(root) for root in roots))
    search = _Search(real, allowed)
    for rule in rules:
        for root in ("/",) if rule.is_absolute else real:
            search.take(rule, root)
    found = (*search.found, *search.same_files())
    for match in found:
        search.ensure_roots_are_left(match.rule, match.path)
    if len({match.path for match in found}) > max(MOST_MASKS, len(rules)):
        raise PathRuleUnkept(found[-1].rule, f"more than {MOST_MASKS} paths match")
    return Matches(found)


class _Ended(Exception):
    """The search stopped before it was complete."""


class _Search:
    def __init__(self, roots: tuple[str, ...], allowed: Sequence[ResolvedPath]) -> None:
        self._roots = roots
        self._allowed = allowed
        self._entries = 0
        self._deadline = time.monotonic() + MOST_SECONDS
        self.found: list[Match] = []

    def take(self, rule: PathRule, root: str) -> None:
        """Add the matches of one rule below one root, or their common directory."""
        before = len(self.found)
        try:
            if root == "/" and rule.is_unbounded:
                raise _Ended("the whole file system would have to be searched")
            self._walk(rule, root, root, "")
        except RecursionError:
            raise PathRuleUnkept(rule, "directories are nested too deeply") from None
        except _Ended as ended:
            raise PathRuleUnkept(rule, f"{ended}; name a directory in it") from None
        if len(self.found) - before > MOST_MASKS:
            del self.found[before:]
            parent = _literal_parent(rule, root)
            if parent == root:
                raise PathRuleUnkept(rule, f"more than {MOST_MASKS} paths match")
            self._add(rule, os.path.realpath(parent), os.path.relpath(parent, root))

    def _walk(self, rule: PathRule, root: str, directory: str, text: str) -> None:
        """Search a directory. `text` is its path for the rule, without the targets of links."""
        if rule.matches(text or ("/" if root == "/" else ".")):
            self._add(rule, directory, text or root)
            return
        if not rule.may_match_below(text):
            return
        last = rule.last_name
        for entry in self._children(rule, root, directory, text):
            ends_otherwise = last is not None and entry.name.casefold() != last
            if ends_otherwise and not entry.is_directory and not entry.is_symlink:
                continue  # a cheap test that excludes most files
            name = f"{text}/{entry.name}" if text or root == "/" else entry.name
            path = os.path.join(directory, entry.name)
            if entry.is_symlink:
                self._follow(rule, root, path, name)
            elif rule.matches(name):
                self._add(rule, path, name)
            elif entry.is_directory:
                self._walk(rule, root, path, name)

    def _follow(self, rule: PathRule, root: str, path: str, name: str) -> None:
        """Follow a link. A link that matches adds its target. A link above a match is followed only
        if the rule names it, because its target is otherwise searched under its own name."""
        target = os.path.realpath(path)
        if rule.matches(name):
            self._add(rule, target if os.path.lexists(target) else path, name)
        elif rule.literal(_depth(name) - 1) is not None and os.path.isdir(target):
            self._walk(rule, root, target, name)

    def _children(self, rule: PathRule, root: str, directory: str, text: str) -> Iterator[_Entry]:
        literal = rule.literal(_depth(text))
        seen = False
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._count()
                    if literal is None or entry.name.casefold() == literal.casefold():
                        seen = seen or entry.name == literal
                        yield _Entry(
                            entry.name, entry.is_symlink(), entry.is_dir(follow_symlinks=False)
                        )
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            # A command could still guess the names in it, or its owner could change the mode.
            if directory == root and root != "/":
                raise _Ended(f"{root}: {error.strerror}") from None
            if literal is None:
                self._add(rule, directory, text)
        if literal is not None and not seen:
            try:
                mode = os.lstat(os.path.join(directory, literal)).st_mode
            except OSError:
                return
            yield _Entry(literal, stat.S_ISLNK(mode), stat.S_ISDIR(mode))

    def _add(self, rule: PathRule, path: str, shown: str) -> None:
        allowed = () if rule.denies else self._allowed
        paths = [resolved.real for resolved in allowed if rule.covers(resolved)]
        if any(is_within(path, resolved) for resolved in paths):
            return
        if any(is_within(resolved, path) for resolved in paths):
            self._add_around(rule, path, shown)
        else:
            self.found.append(Match(path, shown, rule))

    def _add_around(self, rule: PathRule, path: str, shown: str) -> None:
        """Add the entries of a directory, except the paths that an approval covers."""
        for name in _names(path):
            self._count()
            self._add(rule, os.path.join(path, name), f"{shown}/{name}")

    def same_files(self) -> list[Match]:
        """Return the hard links, in the roots, to files that were found."""
        linked: dict[tuple[int, int], Match] = {}
        try:
            for match in self.found:
                for facts in self._files(match.path):
                    if facts.st_nlink > 1:
                        linked[facts.st_dev, facts.st_ino] = match
            if not linked:
                return []
            return [again for root in self._roots for again in self._links(root, linked)]
        except _Ended as ended:
            some = next(iter(linked.values()), None) or self.found[0]
            raise PathRuleUnkept(some.rule, f"hard links: {ended}") from None

    def _files(self, path: str) -> Iterator[os.stat_result]:
        """Yield the status of a file, or of every file in a directory."""
        try:
            facts = os.lstat(path)
        except OSError:
            return
        if not stat.S_ISDIR(facts.st_mode):
            yield facts
            return
        for name in _names(path):
            self._count()
            yield from self._files(os.path.join(path, name))

    def _links(self, root: str, linked: dict[tuple[int, int], Match]) -> Iterator[Match]:
        waiting = [root]
        hidden = {match.path for match in self.found}
        while waiting:
            directory = waiting.pop()
            try:
                device = os.lstat(directory).st_dev
                entries = list(os.scandir(directory))
            except OSError:
                continue
            for entry in entries:
                self._count()
                if entry.path in hidden:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif (match := linked.get((device, entry.inode()))) is not None:
                    yield Match(entry.path, os.path.relpath(entry.path, root), match.rule)

    def ensure_roots_are_left(self, rule: PathRule, path: str) -> None:
        """Refuse a rule that hides a root, because no command can work without its workspace. The
        jail handles a root that is read-only."""
        covered = next((root for root in self._roots if is_within(root, path)), None)
        if covered is not None and (rule.hides or path != covered):
            raise PathRuleUnkept(rule, f"it covers {covered} itself")

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise _Ended(f"more than {MOST_ENTRIES:,} names would have to be searched")
        if self._entries % 256 == 1 and time.monotonic() > self._deadline:
            raise _Ended(f"the search takes longer than {MOST_SECONDS:g} s")


class _Entry(NamedTuple):
    name: str
    is_symlink: bool
    is_directory: bool


def _depth(text: str) -> int:
    return len([name for name in text.split("/") if name])


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _literal_parent(rule: PathRule, root: str) -> str:
    """Return the directory of all possible matches: the names before the first wildcard."""
    directory, depth = root, 0
    while (name := rule.literal(depth)) is not None:
        below = os.path.join(directory, name)
        if not os.path.isdir(below):
            break
        directory, depth = below, depth + 1
    return directory
