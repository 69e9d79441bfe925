"""Tools of a host for the dispatcher, their calls, and the host's file requests during a call.

    execute_tool -> output; format_tool_result -> text for the model; to_display_format -> `meta`

The first definition of a tool is pinned: a tool with a changed description is refused until the
user accepts it (`pins`). File requests pass the same workspace boundary as any tool.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from callgate.core.content import NativeResult, TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolProtocolError,
    ToolValidationError,
)
from callgate.core.local.environment import off_loop
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.call_files import UNDECLARED
from callgate.protocol.host_v1 import frames, values
from callgate.protocol.host_v1.values import ToolSchema
from callgate.protocol.provider_shapes import native_text
from callgate.protocol.strict_json import Unsendable
from callgate.sources.host_handshake import PATIENCE_S
from callgate.sources.host_links import HostExited, HostRefused, InvalidAnswer, Link
from callgate.sources.hosts import Host, HostCall
from callgate.sources.logs import PROBLEM


class RuntimeRequests:
    """Serves the requests of a host during one call, with the context of the call."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._answering: asyncio.Lock | None = None
        """Created by the first request; most calls have none."""
        self.undeclared: str | None = None
        """Message of a refused write, if the tool declares no writes."""

    async def answer(self, request: frames.OfRuntime) -> Any:
        """Return the value of a request. Raises a `ToolError`."""
        self._answering = self._answering or asyncio.Lock()
        try:
            async with self._answering:
                return await self._do(request)
        except ToolError as error:
            if error.reason == UNDECLARED:
                self.undeclared = error.message
            raise
        except UnicodeDecodeError:
            raise ToolExecutionError("The file is not UTF-8 text.", reason="not_text") from None
        except OSError as error:
            message = f"{error.strerror}: {getattr(request, 'path', '')}"
            raise ToolExecutionError(message, reason="os_error") from None

    @property
    def any(self) -> bool:
        """Whether the host has sent any request."""
        return self._answering is not None

    async def ended(self) -> None:
        """Wait until no request is being served: a call may end before an answer that the host
        did not wait for."""
        if self._answering is not None:
            async with self._answering:
                pass

    async def _do(self, request: frames.OfRuntime) -> Any:
        context = self._context
        match request:
            case frames.ReadFile(path=path, encoding=encoding):
                data = context.workspace_files.read_bytes(path)
                return data.decode() if encoding == "utf-8" else base64.b64encode(data).decode()
            case frames.WriteFile(path=path, content=content, encoding=encoding):
                await off_loop(context.workspace_files.write_bytes, path, _bytes(content, encoding))
            case frames.AppendFile(path=path, content=content):
                await off_loop(context.workspace_files.append, path, content)
            case frames.PatchFile(path=path, old=old, new=new):
                await off_loop(context.workspace_files.patch, path, old, new)
            case frames.DeleteFile(path=path):
                await off_loop(context.workspace_files.delete, path)
            case frames.FileExists(path=path):
                return context.workspace_files.exists(path)
            case frames.ListFiles(path=path):
                return context.workspace_files.list(path)
            case frames.KeepArtifact(name=name):
                return context.artifact(name)
            case frames.IsCancelled():
                return context.cancel_event.is_set()
        return None


def _bytes(content: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except ValueError:
        raise ToolValidationError("content: is not base64") from None


async def call(
    host: Host,
    tool: str,
    arguments: dict[str, Any],
    context: ToolContext,
    on_start: Callable[[HostCall], None],
    *,
    trusted: bool = False,
    check: Callable[[], None] = lambda: None,
    watch: Callable[[Link], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> Any:
    """Return the result of `execute_tool`. Raises a `ToolError`.

    `on_start` receives the running call, to cancel it. `trusted`: the host runs our own functions.
    `check` may refuse the selected process. `watch` returns a context manager around its work.
    """

    def tell(event: frames.Event) -> asyncio.Future[None] | None:
        context.publish(*values.to_event(event))
        return context.backpressure()

    requests = RuntimeRequests(context)
    try:
        returned = await host.execute(
            tool, arguments, context, tell, requests.answer, on_start, check, watch
        )
    except HostRefused as refused:
        if refused.failure.stack:
            host.log.note(refused.failure.stack)
        raise values.to_error(refused.failure, trusted=trusted) from None
    except InvalidAnswer as error:
        problem = f"Host {host.settings.name!r}: {error}."
        raise ToolProtocolError(problem, reason="host_answer") from None
    except HostExited as exited:
        raise host.lifecycle.died(exited.exit) from None
    except Unsendable as error:
        raise ToolExecutionError(f"The call does not fit: {error}.", reason="unsendable") from None
    finally:
        if requests.any:
            await requests.ended()
        if requests.undeclared is not None and not trusted:
            host.distrust(f"tool {tool} exceeded its declared effect: {requests.undeclared}")
    return returned.result.value


LONGEST_PREVIEW = 16_000
"""Maximum characters, so that the question stays visible to the approver."""

Changed = Callable[[Host, str], bool]
"""Whether the definition of a tool in a process of its host differs from the pin."""


class HostedTool:
    """One call of a host's tool."""

    def __init__(self, host: Host, definition: ToolDefinition, changed: Changed) -> None:
        self._host = host
        """The process that can write; during the execution, the process of the call."""
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
        """Refuse a process whose definition of the tool differs from the pin."""
        name, host = self._definition.name, self._host
        if self._changed(host, name):
            host.log.note(f"{PROBLEM}the definition of tool {name} differs from the pin")
            raise ToolPermissionDenied(
                f"Tool {name!r} is described differently than when it was first seen: look at "
                f"it, and accept it, with callgate hosts reload {host.settings.name}.",
                reason="definition_changed",
            )

    def _remember(self, host_call: HostCall) -> None:
        self._host_call = host_call

    async def _format(self, session: str, value: dict[str, Any], output: ToolOutput) -> None:
        """Replace the output by the host's own format for a model and a screen."""
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
        """Whether a process is available: a host may be renewed, or end, after its answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._host.link()
        except (ToolError, TimeoutError):
            return False  # the call is done, even without its host
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
        """Return the host's description of a call; None if it has none. It runs before an approval,
        so it cannot write, and its new state is dropped. Raises `ToolPermissionDenied` if it tried
        to write."""
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
        """Cancel the call in the host, or end the process."""
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
    """Return the trusted definition of a tool. The settings state its effect, else the worst case.

    The tool's own claims count only if the host is trusted.
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
