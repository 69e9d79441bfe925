"""What the audit log still knows of a call: its arguments as far as they are whole, its places.

A record keeps a summary, in which long texts are cut and secrets masked. Where the hash on
record proves that nothing is missing, the arguments are taken as they stand; else each is
looked at by itself, and one that was touched is not known. A path is placed by its text
alone: no link is followed and nothing is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolErrorClass
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Root
from callgate.policy.backtesting.inputs import KnownTool, Lookups, Record
from callgate.policy.rules import is_within
from callgate.redaction.values import MASK

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_TOUCHED = re.compile(re.escape(MASK) + r"|…|\[\d+ (?:characters|bytes|more)\]")
"""What `audit.summaries` and `audit.data` leave where they took something out."""

_CALLERS = {each.value: each for each in CallerKind}
_EFFECTS = {each.value: each for each in SideEffects}

REFUSED_PLACES = frozenset({"workspace_escape", "link_loop", "read_only_root", "protected_path"})
"""Reasons with which a path ends a call before the policy is asked about it."""


class RecordedArguments(msgspec.Struct, frozen=True):
    values: Mapping[str, Any] = {}
    whole: bool = False
    """The hash on record proves that these are the arguments of the call."""
    complete: bool = False
    """A name that is not among the values was not among the arguments."""

    def knows(self, name: str) -> bool:
        """Whether what is said here of an argument, if only that there is none, is true."""
        if self.whole:
            return True
        return _untouched(self.values[name]) if name in self.values else self.complete


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    record: Record
    tool: KnownTool | None
    """As it is registered now, if it is."""
    caller: CallerKind
    effect: SideEffects
    destructive: bool | None
    """None where neither the record nor a registered tool says."""
    sandboxed: bool
    """Whether it does all by commands."""
    sha256: str
    """Of its arguments, as far as it is known."""
    arguments: RecordedArguments = RecordedArguments()

    @property
    def aliases(self) -> tuple[str, ...]:
        return () if self.tool is None else self.tool.definition.aliases

    @property
    def path_params(self) -> tuple[str, ...]:
        return () if self.tool is None else self.tool.path_params

    @property
    def repaired(self) -> bool:
        return (self.record.policy or "").startswith("repaired ")

    @property
    def refused_by_path(self) -> bool:
        return self.record.policy is None and self.record.reason in REFUSED_PLACES

    @property
    def knows_paths(self) -> bool:
        return self.tool is not None and all(map(self.arguments.knows, self.path_params))

    def paths(self) -> list[str]:
        found: list[str] = []
        for name in self.path_params:
            value = self.arguments.values.get(name)
            items = value if isinstance(value, list) else [value]
            found += (each for each in items if isinstance(each, str))
        return found


def recall(record: Record, tool: KnownTool | None) -> RecordedCall | None:
    """The call of a record, its arguments not yet read; None where it ended before it could be
    judged at all, because there was no such tool or its arguments were wrong."""
    invalid = record.policy is None and record.error_class == ToolErrorClass.VALIDATION_ERROR
    if record.args_hash is None or record.side_effects is None or invalid:
        return None
    caller, effect = _CALLERS.get(record.caller), _EFFECTS.get(record.side_effects)
    if caller is None or effect is None:
        return None
    # What a dead process left is recorded without capabilities.
    known = record.capabilities or (() if tool is None else tool.capability_names)
    return RecordedCall(
        record=record,
        tool=tool,
        caller=caller,
        effect=effect,
        destructive=Capability.DESTRUCTIVE in known if known else None,
        sandboxed=record.sandbox is not None or (tool is not None and tool.definition.sandboxed),
        sha256=record.args_hash,
    )


def plain_sha256(record: Record, lookups: Lookups, guesses: Iterable[str | None] = ()) -> str:
    """The hash of the arguments, if they are those on record or one of these: a record has only
    a keyed hash of it."""
    args = record.args.encode("utf-8", "surrogatepass")
    for plain in (sha256(args).hexdigest(), *guesses):
        if plain is not None and lookups.recorded_hash(plain) == record.args_hash:
            return plain
    return record.args_hash or ""


def read_arguments(call: RecordedCall) -> RecordedArguments:
    args = call.record.args
    try:
        values = _decode(args)
    except (ValueError, RecursionError):
        return RecordedArguments()
    if sha256(args.encode()).hexdigest() == call.sha256:
        return RecordedArguments(values, True, True)
    return RecordedArguments(values, False, all(map(_untouched, values)))


def _untouched(value: Any) -> bool:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _TOUCHED.search(text) is None


@lru_cache(maxsize=4096)
def resolve_recorded(
    path: str, spelled: str, roots: tuple[Root, ...], is_protected: Callable[[str], bool]
) -> ResolvedPath | None:
    """Where a path leads by its text; None if out of all roots, of which the first is the
    workspace. `spelled` is the workspace as its session names it."""
    workspace = roots[0].path
    real = _plain(os.path.join(spelled, path))
    if is_within(real, spelled):
        real = _plain(workspace + real[len(spelled.rstrip("/")) :])
    for root in roots:
        if is_within(real, root.path):
            relative = real[len(root.path.rstrip("/")) + 1 :] or "."
            return ResolvedPath(
                given=path,
                real=real,
                root=root.path,
                relative=relative,
                exists=True,
                protected=is_protected(relative) or is_protected(_below(path, root.path, spelled)),
                writable=root.writable,
            )
    return None


def _plain(path: str) -> str:
    return "/" + os.path.normpath(path).lstrip("/")


def _below(path: str, *roots: str) -> str:
    """A path as it was written, without the root before it: what it passes through counts."""
    for root in roots:
        path = path.removeprefix(root.rstrip("/") + "/")
    return path
