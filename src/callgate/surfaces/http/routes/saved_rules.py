"""Saving a rule from the page: a call like any other, which is always asked about and recorded.

The tool for it is no tool for models or other clients: only the sessions that are made here see it,
and they are made for the owner's own login on this machine alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, structs

from callgate.config.home import Home
from callgate.config.load import SettingsError, check_rule
from callgate.config.saved import save_rule
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.raw_open import watched
from callgate.policy.rules import Outcome
from callgate.runtime import Runtime
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.disconnects import while_connected
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import forbidden
from callgate.surfaces.http.routes.values import Input, Result, result_of

TAG = "save_rule"
_TEXT = {"type": "string", "minLength": 1}
_DEFINITION = ToolDefinition(
    name="save_rule",
    description="Add a rule to rules.toml, which then decides about calls without a question.",
    input_schema={
        "type": "object",
        "properties": {
            "decision": {"type": "string", "enum": [each.value for each in Outcome]},
            "tool": _TEXT,
            "command": _TEXT,
            "path": _TEXT,
            "caller": {"type": "string", "enum": [each.value for each in CallerKind]},
            "workspace": _TEXT,
            "arguments": {"type": "object", "additionalProperties": True},
            "without": {"type": "array", "items": _TEXT},
            "arguments_sha256": _TEXT,
            "network": {"type": "boolean"},
        },
        "required": ["decision"],
    },
    side_effects=SideEffects.WRITE,
    capabilities=frozenset({Capability.WRITES_FILES}),
    path_params=(),
    kind="edit",
    source="builtin",
    always_ask=True,
    requires_workspace=False,
    required_tags=frozenset({TAG}),
)

Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class NewRule(Input, frozen=True, kw_only=True):
    decision: Outcome
    tool: Text | None = None
    command: Text | None = None
    path: Text | None = None
    caller: CallerKind | None = None
    workspace: Text | None = None
    arguments: Annotated[
        dict[Text, Annotated[str, Meta(max_length=4096)]], Meta(max_length=100)
    ] = {}
    without: Annotated[list[Text], Meta(max_length=100)] = []
    arguments_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    network: bool | None = None


class SaveRule:
    definition = _DEFINITION

    def __init__(self, home: Home, refresh: Callable[[], None]) -> None:
        self._home = home
        self._refresh = refresh

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        watched.set(["", context.session_id])  # settings are ours to open
        try:
            check_rule(input)  # a wrong one would keep everything from starting
            await asyncio.to_thread(save_rule, self._home, input)
            self._refresh()
        except (SettingsError, OSError) as error:
            raise ToolExecutionError(f"The rule is not saved: {error}") from None
        return ToolOutput(
            content=[TextBlock(f"Saved in {self._home.saved_rules}.")],
            files_modified=[self._home.saved_rules],
        )

    async def cancel(self) -> bool:
        return False


def register(runtime: Runtime, home: Home, refresh: Callable[[], None]) -> None:
    """Raises `ToolRegistrationError` where another tool has the name."""
    runtime.register(lambda: SaveRule(home, refresh))


async def save_new_rule(context: Context, request: Request) -> Result:
    body: NewRule = request.body
    if not (request.browser and context.names.address.is_local):
        message = "Rules are saved by who is logged in on this machine; others edit settings.toml."
        raise forbidden(message, "login")
    session = context.sessions.fresh(client=request.client)
    session.tags |= {TAG}
    call = ToolCall(
        tool=_DEFINITION.name,
        arguments={
            key: value for key, value in structs.asdict(body).items() if value not in (None, {}, [])
        },
        session=session,
        caller=CallerKind.HTTP,
        client=request.client,
    )
    try:
        return result_of(await while_connected(request, context.runtime.call(call)))
    finally:
        context.sessions.let_go(session)


OPERATIONS = (
    Operation(
        "POST",
        "/v1/policy/rules",
        "Save a rule, after a yes; for the owner's own login.",
        save_new_rule,
        Result,
        body=NewRule,
        errors=(403, 503),
    ),
)
