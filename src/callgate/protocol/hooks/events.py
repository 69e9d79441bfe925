"""What a hook reports, and what it is answered: the same values for every agent."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class HookPhase(StrEnum):
    BEFORE = "pre"
    """The agent wants to run a tool, and waits for the answer."""
    AFTER = "post"
    """It has run one."""


class BadHookEvent(ValueError):
    """The event cannot be read. `str(error)` may be shown to the agent."""


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    phase: HookPhase
    session: str
    """The agent's own id of its conversation."""
    cwd: str | None
    tool: str
    """As the agent calls it."""
    input: Mapping[str, Any]
    use_id: str | None = None
    """The agent's id of the call; None where it has none."""
    failed: bool = False
    """After a call: it did not go well."""
    output: str | None = None
    """After a call: what came out, as far as it is text."""
    permission_mode: str | None = None
    """The agent's own permission mode, if the event names it."""
    relayed: bool = False
    """Another agent than the one of this hook sends it, because it reads those settings too."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool
    undecided: bool = False
    """The call may run if the agent's own checks let it: the answer skips none of them."""
    reason: str = ""
    """For the model and the person, where it is refused."""
    updated_input: Mapping[str, Any] | None = None
    """What is to be run in place of the input, where the agent takes that."""
