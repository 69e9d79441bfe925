"""langchain and langgraph: a middleware of `create_agent` that calls tools through a gate.

    agent = create_agent(model, tools, middleware=[GateMiddleware(gate, effects={...})])

List it last: the last middleware is the innermost, so the gate checks the arguments after all
others. `invoke` and `stream` need a gate from `with Gate(...)`, or a thread outside the gate's
event loop. Otherwise they raise a `GateError` that names `ainvoke`. A refusal is a `ToolMessage`
with status `error`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from callgate.adapters.guard import Effects, GateError, Guard
from callgate.gate import Gate

_ASYNC = "`ainvoke` or `astream`"


class GateMiddleware(AgentMiddleware[Any, Any]):
    """Every tool of an agent behind a gate."""

    def __init__(
        self,
        gate: Gate,
        effects: Effects | None = None,
        *,
        paths: Mapping[str, Iterable[str]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Same parameters as `Guard`."""
        super().__init__()
        self.guard = Guard(gate, effects, paths=paths, timeout_s=timeout_s)
        self._schemas: dict[int, tuple[Any, dict[str, Any]]] = {}
        """Id of a tool -> the tool and its schema. Creating a schema takes longer than a call."""

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        """Pass the user's prompts of this run to the gate.

        Later messages may come from another middleware, such as a summary of tool results.
        """
        await self.guard.add_prompts(_new_prompts(state.get("messages", ())))

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.guard.add_prompts_blocking(_new_prompts(state.get("messages", ())), use=_ASYNC)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        call = request.tool_call

        async def run(judged: dict[str, Any]) -> Any:
            return await handler(_with_arguments(request, judged))

        try:
            return await self.guard.call(
                call["name"], call["args"], run, **self._described(request), read=_read
            )
        except GateError as error:
            return _refusal(call, error)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]
    ) -> Any:
        call = request.tool_call

        def run(judged: dict[str, Any]) -> Any:
            return handler(_with_arguments(request, judged))

        try:
            return self.guard.call_blocking(
                call["name"], call["args"], run, use=_ASYNC, **self._described(request), read=_read
            )
        except GateError as error:
            return _refusal(call, error)

    def _described(self, request: ToolCallRequest) -> dict[str, Any]:
        tool = request.tool
        return {
            "description": None if tool is None else tool.description,
            "schema": None if tool is None else self._schema(tool),
            "call_id": request.tool_call["id"],
        }

    def _schema(self, tool: Any) -> dict[str, Any]:
        known = self._schemas.get(id(tool))
        if known is None:
            known = self._schemas[id(tool)] = (tool, _schema(tool))
        return known[1]


def _with_arguments(request: ToolCallRequest, judged: dict[str, Any]) -> ToolCallRequest:
    return request.override(tool_call={**request.tool_call, "args": judged})


def _refusal(call: Any, error: GateError) -> ToolMessage:
    return ToolMessage(
        content=str(error), name=call["name"], tool_call_id=call["id"], status="error"
    )


def _schema(tool: Any) -> dict[str, Any]:
    """Return the schema of the model's arguments, without arguments that langgraph injects."""
    model = tool.tool_call_schema
    schema: dict[str, Any] = model if isinstance(model, dict) else model.model_json_schema()
    return schema


def _read(result: Any) -> tuple[Any, bool]:
    if isinstance(result, ToolMessage):
        return result.content, result.status == "error"
    return result, False


def _new_prompts(messages: Sequence[Any]) -> list[str]:
    """Return the user's last prompts."""
    new: list[str] = []
    for each in reversed(messages):
        if not isinstance(each, HumanMessage):
            break
        if "lc_source" not in each.additional_kwargs:
            new.insert(0, str(each.text))
    return new
