"""langchain and langgraph: a middleware of `create_agent` that calls tools through a gate.

    agent = create_agent(model, tools, middleware=[GateMiddleware(gate, effects={...})])

The middleware listed last is the innermost: what stands before it may change arguments, and what
it gets is what is judged. An agent with it runs with `ainvoke` and `astream`: a gate is
asynchronous, and langchain says so for `invoke`. A refusal is a `ToolMessage` with status
`error`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from callgate.adapters.effects import Effects
from callgate.adapters.guard import GateError, Guard
from callgate.gate import Gate


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
        """As `Guard`."""
        super().__init__()
        self.guard = Guard(gate, effects, paths=paths, timeout_s=timeout_s)
        self._schemas: dict[int, tuple[Any, dict[str, Any]]] = {}
        """By tool, which is kept with it: making a schema takes longer than a call."""

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        """Tell the gate what this run was begun with. Later ones may be another middleware's, such
        as a summary of what tools have returned."""
        await self.guard.add_prompts(_new_prompts(state.get("messages", ())))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        call, tool = request.tool_call, request.tool

        async def run(judged: dict[str, Any]) -> Any:
            return await handler(request.override(tool_call={**call, "args": judged}))

        try:
            return await self.guard.call(
                call["name"],
                call["args"],
                run,
                description=None if tool is None else tool.description,
                schema=None if tool is None else self._schema(tool),
                call_id=call["id"],
                read=_read,
            )
        except GateError as error:
            return ToolMessage(
                content=str(error), name=call["name"], tool_call_id=call["id"], status="error"
            )

    def _schema(self, tool: Any) -> dict[str, Any]:
        known = self._schemas.get(id(tool))
        if known is None:
            known = self._schemas[id(tool)] = (tool, _schema(tool))
        return known[1]


def _schema(tool: Any) -> dict[str, Any]:
    """What a model may give: arguments that langgraph injects are not among them."""
    model = tool.tool_call_schema
    schema: dict[str, Any] = model if isinstance(model, dict) else model.model_json_schema()
    return schema


def _read(result: Any) -> tuple[Any, bool]:
    if isinstance(result, ToolMessage):
        return result.content, result.status == "error"
    return result, False


def _new_prompts(messages: Sequence[Any]) -> list[str]:
    """What the user said last."""
    new: list[str] = []
    for each in reversed(messages):
        if not isinstance(each, HumanMessage):
            break
        if "lc_source" not in each.additional_kwargs:
            new.insert(0, str(each.text))
    return new
