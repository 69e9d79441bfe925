"""Claude Code's own rules, by its documentation (code.claude.com/docs, permissions and modes).

    default mode   reading tools run; edits, pages and commands ask, except commands that only read
    auto mode      edits in the project run, too; a classifier model decides the rest

The program itself is not run here. `asked` in auto mode means that the classifier decides.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from safety.coding.approver import Approver
from safety.coding.scene import Place
from safety.coding.sessions import CodingCall

_READING = re.compile(r"ls|cat|echo|pwd|head|tail|grep|find|wc|which|diff|stat|du|cd")
_GIT = re.compile(r"status|log|diff|show|blame|branch|remote|tag|rev-parse|ls-files|shortlog")
_CHANGING = re.compile(r"-delete|-exec\w*|-ok|-D|-d|-m|add|remove|set-url")
_OUTSIDE = re.compile(r"[~/].*|.*\.\./.*")
"""Arguments that count as outside the project: a command with one asks."""
_HARMLESS = re.compile(r"\s*2>(?:&1|\s*/dev/null)")
_UNCLEAR = re.compile(r"[<>`\n]|\$\(|(?<!&)&(?!&)")
_PROTECTED = re.compile(r"(?:^|/)\.(?:git|claude|vscode|idea|husky|npmrc|mcp\.json|bashrc)")


class ClaudeRules(msgspec.Struct, frozen=True):
    name: str
    title: str
    is_auto: bool = False

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(
        self, where: Place, prompt: str, person: Approver
    ) -> AsyncIterator[_DocumentedDoor]:
        yield _DocumentedDoor(person, self.is_auto)


class _DocumentedDoor:
    def __init__(self, person: Approver, is_auto: bool) -> None:
        self._person = person
        self._is_auto = is_auto

    async def runs(self, call: CodingCall) -> bool:
        if is_allowed(call, self._is_auto):
            return True
        self._person.questions.append(f"{call.kind}: not allowed by a documented rule")
        return self._person.allows

    async def is_contained(self, call: CodingCall) -> bool:
        return False  # the documented rules need no sandbox


def is_allowed(call: CodingCall, is_auto: bool) -> bool:
    """Whether a documented rule lets the call run without a person or a classifier. Pure."""
    if call.kind in ("read", "grep", "glob"):
        return not call.texts[0].startswith(("/", ".."))
    if call.kind in ("write", "edit"):
        is_inside = not call.texts[0].startswith(("/", "..")) and not _PROTECTED.search(
            call.texts[0]
        )
        return is_auto and is_inside
    return call.kind == "shell" and only_reads(call.texts[0])


def only_reads(command: str) -> bool:
    """Whether every part of a command line is a documented command that reads. Pure."""
    plain = _HARMLESS.sub("", _without_quotes(command))
    if _UNCLEAR.search(plain):
        return False
    return all(_part_reads(part.split()) for part in re.split(r"\|\||&&|[|;]", plain))


def _part_reads(words: list[str]) -> bool:
    if not words or any(_OUTSIDE.fullmatch(word) for word in words[1:]):
        return False
    rest = words[1:]
    if words[0] == "git":
        if not rest or not _GIT.fullmatch(rest[0]):
            return False
        rest = rest[1:]
    elif not _READING.fullmatch(words[0]):
        return False
    return not any(_CHANGING.fullmatch(word) for word in rest)


def _without_quotes(command: str) -> str:
    """The command with each quoted text replaced by a word; a substitution stays. Pure."""
    return re.sub(r"'[^']*'|\"[^\"$`]*\"", "quoted", command)
