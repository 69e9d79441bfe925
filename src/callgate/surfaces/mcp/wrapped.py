"""The resources and prompts of a wrapped server, each asked for by a call through the gate.

The server's source brings a tool for each of these requests (`sources.mcp.extras`); here they
become what they were. A server that lacks one of them is not asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import mcp_types as types
from pydantic import BaseModel

from callgate.core.calls import CallerKind, ToolCall
from callgate.sources.mcp.definitions import readable, readable_schema
from callgate.sources.mcp.names import rule_name
from callgate.surfaces.mcp.resources import Contents, Here, Typed
from callgate.surfaces.mcp.workspace import value_of

_MOST_PAGES = 20
_UNKNOWN = (types.INVALID_PARAMS, -32002)
"""Codes by which a server says that there is no such resource or prompt."""

M = TypeVar("M", bound=BaseModel)


class _ServerRequests:
    def __init__(self, server: str, has: Collection[str]) -> None:
        """`has` are the requests that the server answers, as rules name them."""
        self._server = server
        self._has = has

    async def _ask(
        self, request: str, arguments: dict[str, Any], here: Here
    ) -> dict[str, Any] | None:
        """None where the server does not answer this, or knows of no such thing."""
        if request not in self._has:
            return None
        call = ToolCall(
            tool=rule_name(self._server, request),
            arguments=arguments,
            session=here.session,
            caller=CallerKind.MCP,
        )
        result = await here.run(call)
        if result.error is not None and result.error.detail_fields.get("code") in _UNKNOWN:
            return None
        answer: dict[str, Any] = value_of(result)
        return answer

    async def _all(self, request: str, key: str, kind: type[M], here: Here) -> list[M]:
        found: list[M] = []
        cursor: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            answer = await self._ask(request, cursor, here)
            if answer is None:
                break
            found += [kind.model_validate(each) for each in answer.get(key, ())]
            if not answer.get("nextCursor"):
                break
            cursor = {"cursor": answer["nextCursor"]}
        return found

    async def _complete(self, of: dict[str, Any], typed: Typed, here: Here) -> Sequence[str]:
        params = {**of, "argument": typed.name, "value": typed.value}
        if typed.given:
            params["context"] = dict(typed.given)
        answer = await self._ask("completion", params, here) or {}
        return [str(each) for each in answer.get("completion", {}).get("values", ())]


class WrappedResources(_ServerRequests):
    async def listed(self, here: Here) -> Sequence[types.Resource]:
        return await self._all("resources/list", "resources", types.Resource, here)

    async def templates(self, here: Here) -> Sequence[types.ResourceTemplate]:
        answer = await self._ask("resources/list", {}, here) or {}
        found = answer.get("resourceTemplates", ())
        return [types.ResourceTemplate.model_validate(each) for each in found]

    async def read(self, uri: str, here: Here) -> Sequence[Contents] | None:
        answer = await self._ask("resources/read", {"uri": uri}, here)
        return None if answer is None else types.ReadResourceResult.model_validate(answer).contents

    async def complete(self, template: str, typed: Typed, here: Here) -> Sequence[str]:
        return await self._complete({"template": template}, typed, here)


class WrappedPrompts(_ServerRequests):
    async def listed(self, here: Here) -> Sequence[types.Prompt]:
        return await self._all("prompts/list", "prompts", types.Prompt, here)

    async def get(
        self, name: str, arguments: Mapping[str, str], here: Here
    ) -> types.GetPromptResult | None:
        params = {"name": name, "arguments": dict(arguments)}
        answer = await self._ask("prompts/get", params, here)
        return None if answer is None else types.GetPromptResult.model_validate(answer)

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        return await self._complete({"prompt": prompt}, typed, here)


def extra_fields(entry: Mapping[str, Any], *, trusted: bool) -> dict[str, Any]:
    """What a server says of a tool beyond our own definition of it: how people call it, and what
    its results are like. What it says of its effects counts where it is trusted."""
    hints = entry.get("annotations", {})
    extra: dict[str, Any] = {"annotations": dict(hints) if trusted else {}}
    for names, into in ((entry, extra), (hints, extra["annotations"])):
        if "title" in names:
            into["title"] = readable(names["title"])
    if "outputSchema" in entry:
        extra["outputSchema"] = readable_schema(entry["outputSchema"])
    return extra
