"""Recorded calls as inputs of a back-test, with two sets of settings and facts that no record has.

A call is recalled from the audit log: its arguments as far as they are complete, and its paths. A
record has a summary, in which long texts are truncated and secrets masked. If the recorded hash
proves that the summary is complete, all arguments are known. Otherwise each argument is checked,
and a modified one counts as unknown. A path is resolved by its text alone: no link is followed and
no file is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, ResolvedPath, Root
from callgate.core.tools import ToolDefinition
from callgate.policy.rules import Origin, Policy, is_within
from callgate.redaction.names import MASK


class Record(Protocol):
    """A call in the audit log (`audit.records.CallRecord`)."""

    @property
    def ts(self) -> int: ...
    @property
    def call_id(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def caller(self) -> str: ...
    @property
    def cwd(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def args(self) -> str: ...
    @property
    def args_hash(self) -> str | None: ...
    @property
    def side_effects(self) -> str | None: ...
    @property
    def capabilities(self) -> tuple[str, ...]: ...
    @property
    def decision(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def error_class(self) -> str | None: ...
    @property
    def policy(self) -> str | None: ...
    @property
    def sandbox(self) -> str | None: ...


class KnownTool(Protocol):
    """A tool that is registered now."""

    @property
    def definition(self) -> ToolDefinition: ...
    @property
    def path_params(self) -> tuple[str, ...]: ...
    @property
    def capability_names(self) -> tuple[str, ...]: ...


class SandboxSettings(msgspec.Struct, frozen=True):
    grants_network: bool
    """Whether every command has network access without a request."""
    table: object
    """The complete settings, for comparison."""


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One set of settings."""

    user: Policy
    mode: Mode
    """Default mode of sessions."""
    roots: tuple[Root, ...]
    """Roots in addition to the workspace, with links resolved."""
    disabled: Mapping[str, Origin]
    """Disabled tools, with the origin of the setting."""
    sandbox: SandboxSettings | None
    """None: commands run without a sandbox."""


class WorkspacePolicy(msgspec.Struct, frozen=True):
    directory: str
    """The workspace with links resolved."""
    policy: Policy | None
    """The policy of its own settings, if the user trusts it."""


class Lookups(msgspec.Struct, frozen=True, kw_only=True):
    home: str
    """The home of callgate with links resolved; no tool writes in it."""
    tool: Callable[[str], KnownTool | None]
    workspace: Callable[[str], WorkspacePolicy | None]
    """Returns None if the settings of the workspace are unusable."""
    is_protected: Callable[[str], bool]
    """Whether a path, relative to its root, is a protected path."""
    recorded_hash: Callable[[str], str]
    """The keyed hash in a record for arguments with this SHA-256. Old records contain the plain
    hash.
    """


_decode = msgspec.json.Decoder(dict[str, Any]).decode
_TOUCHED = re.compile(re.escape(MASK) + r"|…|\[\d+ (?:characters|bytes|more)\]")
"""Marks that `redaction.data` leaves in place of removed data."""

_CALLERS = {each.value: each for each in CallerKind}
_EFFECTS = {each.value: each for each in SideEffects}

REFUSED_PLACES = frozenset({"workspace_escape", "link_loop", "read_only_root", "protected_path"})
"""Reasons of calls that a path check refused before the policy applied."""


class RecordedArguments(msgspec.Struct, frozen=True):
    values: Mapping[str, Any] = {}
    verified: bool = False
    """Whether the recorded hash proves that these are the arguments of the call."""
    complete: bool = False
    """Whether an absent name was absent in the arguments, too."""

    def knows(self, name: str) -> bool:
        """Whether the value of an argument, or its absence, is known."""
        if self.verified:
            return True
        return _untouched(self.values[name]) if name in self.values else self.complete


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    record: Record
    tool: KnownTool | None
    """The tool of this name that is registered now."""
    caller: CallerKind
    effect: SideEffects
    destructive: bool | None
    """None if neither the record nor a registered tool has the information."""
    sandboxed: bool
    """Whether the tool works only with sandboxed commands."""
    sha256: str
    """Hash of its arguments, as far as it is known."""
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
    """Return the call of a record, without its arguments.

    None if it ended before the policy applied, because the tool was unknown or the arguments
    invalid.
    """
    invalid = record.policy is None and record.error_class == ToolErrorClass.VALIDATION_ERROR
    if record.args_hash is None or record.side_effects is None or invalid:
        return None
    caller, effect = _CALLERS.get(record.caller), _EFFECTS.get(record.side_effects)
    if caller is None or effect is None:
        return None
    # Calls of a process that died are recorded without capabilities.
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
    """Return the plain hash of the arguments if it is the hash of the recorded ones or one of the
    guesses; a record has only a keyed hash.
    """
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
    """Return the target of a path by its text; None outside all roots.

    The first root is the workspace. `spelled` is the workspace as its session names it.
    """
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
    """Return a path without its root. The path stays as written, because its components count."""
    for root in roots:
        path = path.removeprefix(root.rstrip("/") + "/")
    return path
