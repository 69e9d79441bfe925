"""What a back-test is given: two sets of settings, and what a record does not hold itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from callgate.core.sessions import Mode, Root
from callgate.core.tools import ToolDefinition
from callgate.policy.rules import Origin, Policy


class Record(Protocol):
    """A call as the audit log keeps it (`audit.records.CallRecord`)."""

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
    """Every command has the network, so none has to ask for it."""
    table: object
    """All that is set, to be compared."""


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two sets of settings."""

    user: Policy
    mode: Mode
    """Of a session that names none."""
    roots: tuple[Root, ...]
    """Beside the workspace, links resolved."""
    disabled: Mapping[str, Origin]
    """Tools, and where it says so."""
    sandbox: SandboxSettings | None
    """None: commands run with nothing around them."""


class WorkspacePolicy(msgspec.Struct, frozen=True):
    directory: str
    """The workspace with links resolved."""
    policy: Policy | None
    """From its own settings, where the user trusts it."""


class Lookups(msgspec.Struct, frozen=True, kw_only=True):
    home: str
    """Our home with links resolved, in which no tool writes."""
    tool: Callable[[str], KnownTool | None]
    workspace: Callable[[str], WorkspacePolicy | None]
    """None for one whose settings cannot be used."""
    is_protected: Callable[[str], bool]
    """Whether a path, relative to its root, is one that runs later by itself."""
    recorded_hash: Callable[[str], str]
    """The hash by which a record knows arguments with this SHA-256; older ones know them by it."""
