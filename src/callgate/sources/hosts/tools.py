"""The tools of a host, as the dispatcher sees them.

    execute_tool -> output; format_tool_result -> what the model reads; to_display_format -> `meta`

What a host says of its tools was pinned when it was first seen: a tool whose description is
another by now is refused until somebody has looked at it (`pins`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from callgate.core.content import NativeResult, TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.protocol.host_v1 import frames, values
from callgate.protocol.host_v1.schemas import ToolSchema
from callgate.protocol.native_results import native_text
from callgate.sources.hosts.calls import call
from callgate.sources.hosts.hosts import Host, HostCall
from callgate.sources.hosts.optional import PATIENCE_S
from callgate.sources.logs import PROBLEM

LONGEST_PREVIEW = 16_000
"""Characters: who is asked has to see the question, too."""

Changed = Callable[[Host, str], bool]
"""Whether a tool is no longer as it was pinned, in a process of its host."""


class HostedTool:
    """One call of a host's tool."""

    def __init__(self, host: Host, definition: ToolDefinition, changed: Changed) -> None:
        self._host = host
        """The process that can write; once it is executed, the one that serves the call."""
        self._definition = definition
        self._changed = changed
        self._host_call: HostCall | None = None

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        name = self._definition.name
        if not context.may_write:
            self._host = self._host.reading
        calls = self._host.read_only_calls
        value = await call(
            self._host,
            name,
            input,
            context,
            self._remember,
            check=self._check,
            watch=lambda link: calls.serving(link, self._definition, context),
        )
        output = values.to_output(value)
        if isinstance(value, dict) and isinstance(value.get("success"), bool):
            await self._format(context.session_id, value, output)
        return output

    def _check(self) -> None:
        """Refuse a process that describes the tool differently than it was pinned."""
        name, host = self._definition.name, self._host
        if self._changed(host, name):
            host.log.note(f"{PROBLEM}tool {name} is described differently than it was pinned")
            raise ToolPermissionDenied(
                f"Tool {name!r} is described differently than when it was first seen: look at "
                f"it, and accept it, with callgate hosts reload {host.settings.name}.",
                reason="definition_changed",
            )

    def _remember(self, host_call: HostCall) -> None:
        self._host_call = host_call

    async def _format(self, session: str, value: dict[str, Any], output: ToolOutput) -> None:
        """What the host makes of its result for a model and for a screen."""
        host = self._host
        if not (host.supports("format_tool_result") or host.supports("to_display_format")):
            return
        if not await self._is_available():
            return
        if host.supports("format_tool_result"):
            formatted = await host.try_ask(
                session, frames.FormatToolResult(result=value), PATIENCE_S
            )
            if formatted is not None:
                self._show(values.to_model_text(formatted), output)
        if host.supports("to_display_format"):
            text = "\n".join(each.text for each in output.content if isinstance(each, TextBlock))
            params = frames.ToDisplayFormat(text=text, result=value)
            shown = await host.try_ask(session, params, PATIENCE_S)
            if shown is not None:
                output.metadata = {**output.metadata, "display": shown}

    async def _is_available(self) -> bool:
        """Whether there is a process to ask: a host may be renewed, or die, after it answered."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._host.link()
        except (ToolError, TimeoutError):
            return False  # the call is done, whatever became of its host
        return not self._changed(self._host, self._definition.name)

    def _show(self, text: str | values.ProviderNative, output: ToolOutput) -> None:
        if isinstance(text, str):
            output.content = [TextBlock(text)]
        else:
            output.content = [TextBlock(native_text(text))]
            output.native = NativeResult(format=text.format, content=text.content)
            envelope = msgspec.to_builtins(text)
            output.metadata = {**output.metadata, "provider_native": envelope}

    async def preview(self, input: dict[str, Any], environment: Any) -> str | None:
        return await self.preview_for("", input)

    async def preview_for(self, session: str, input: dict[str, Any]) -> str | None:
        """The host's own words for what a call of a session will do; None where it has none.
        Nobody has said yes: it cannot write, and what it wants to remember is forgotten. Raises
        `ToolPermissionDenied` where it was seen to try."""
        params = frames.FormatToolCallPreview(tool_name=self._definition.name, arguments=input)
        process = self._host.reading
        link = await process.link()
        if self._changed(process, self._definition.name):
            return None
        with process.read_only_calls.previewing(link, self._definition):
            text = await process.try_ask(session, params, PATIENCE_S, keep_state=False)
        if not isinstance(text, str):
            return None
        beyond = len(text) - LONGEST_PREVIEW
        return text if beyond <= 0 else f"{text[:LONGEST_PREVIEW]}\n[and {beyond} characters more]"

    async def cancel(self) -> bool:
        """The host ends the call, or we end the host."""
        if self._host_call is None:
            return False
        await self._host.cancel(self._host_call)
        return True


def definition_of(
    schema: ToolSchema,
    *,
    effect: SideEffects,
    effects: Mapping[str, SideEffects],
    trusted: bool,
    required_tags: Collection[str] = (),
    timeout_s: float | None = None,
) -> ToolDefinition:
    """What is known of a tool: what it can do is what the settings say, at worst everything.

    What it claims itself counts only from a host that is trusted.
    """
    override = effects.get(schema.name)
    capabilities: frozenset[Capability] = frozenset()
    if override is None and trusted and schema.capabilities:
        known = {each.value for each in Capability}
        capabilities = frozenset(Capability(each) for each in schema.capabilities if each in known)
    return ToolDefinition(
        name=schema.name,
        description=schema.description,
        input_schema=schema.input_schema,
        side_effects=None if capabilities else override or effect,
        capabilities=capabilities,
        required_tags=frozenset(required_tags),
        timeout_s=timeout_s,
        source="host",
    )
