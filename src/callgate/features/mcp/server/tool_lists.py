"""Tools and results in MCP form: pages of a list, and search tools in place of a long list."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from callgate.core.calls import ErrorInfo, ToolResult
from callgate.core.errors import ToolError, ToolErrorClass, ToolValidationError
from callgate.core.tools import ToolDefinition
from callgate.features.mcp.server.pending_requests import LACKS
from callgate.protocol.provider_shapes import to_mcp, to_mcp_result
from callgate.runtime import Registered


def tool_of(tool: Registered, name: str, extra: Mapping[str, Any]) -> types.Tool:
    """Return a tool in MCP form. `extra`: additional fields, which take precedence."""
    shaped = to_mcp(tool.definition)
    hints = {
        "openWorldHint": False,  # MCP's default is true
        **shaped["annotations"],
        **extra.get("annotations", {}),
    }
    return types.Tool.model_validate({**shaped, **extra, "name": name, "annotations": hints})


def result_of(
    result: ToolResult, name: str, *, modern: bool, was_searched: bool = False
) -> dict[str, Any]:
    """Return the result of `tools/call`; `name` is the tool's name for the client.

    Raises `MCPError` for errors outside the tool. `was_searched`: a model wrote the name, so an
    unknown name is a tool error, which the model sees.
    """
    if result.error is not None:
        _ensure_of_tool(result.error, name, modern, was_searched)
    shaped = to_mcp_result(result)
    if result.error is None and not isinstance(result.value, dict):
        shaped.pop("structuredContent", None)  # it would repeat the text
    return complete(shaped, modern=modern)


def refusal(error: ToolError, name: str, *, modern: bool) -> dict[str, Any]:
    """Return the answer to a request that was refused before it became a call."""
    info = ErrorInfo.of(error, name)
    return complete(
        {
            "content": [{"type": "text", "text": info.message}],
            "structuredContent": {"error": msgspec.to_builtins(info)},
            "isError": True,
        },
        modern=modern,
    )


def complete(answer: dict[str, Any], *, modern: bool) -> dict[str, Any]:
    """Mark a response as the last one of its request, if the protocol version has such a mark."""
    return {**answer, "resultType": "complete"} if modern else answer


def _ensure_of_tool(error: ErrorInfo, name: str, modern: bool, was_searched: bool) -> None:
    is_unknown = error.error_class is ToolErrorClass.NOT_FOUND and error.reason != LACKS
    if is_unknown and not was_searched:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {name[:200]}")
    if modern and error.reason == LACKS:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY, error.message, dict(error.detail_fields)
        )


def error_of(error: ToolError, uri: str | None = None) -> MCPError:
    """Return the protocol error for a `ToolError` in a request without a tool result."""
    info = ErrorInfo.of(error, "")
    details = {"class": str(info.error_class), "reason": info.reason}
    if uri is not None:
        details["uri"] = uri
    return MCPError(types.INTERNAL_ERROR, info.message, details)


def unknown_resource(uri: str, *, modern: bool) -> MCPError:
    code = types.INVALID_PARAMS if modern else _NOT_FOUND_2025
    return MCPError(code, f"Unknown resource: {uri[:200]}", {"uri": uri})


_NOT_FOUND_2025 = -32002


T = TypeVar("T")

PAGE = 200


def page(
    items: Sequence[T], key: Callable[[T], str], cursor: str | None
) -> tuple[list[T], str | None]:
    """Return the items after a cursor, sorted by key, and the cursor of the next page.

    Raises `MCPError` for an invalid cursor.
    """
    ordered = sorted(items, key=key)
    if cursor is not None:
        last = _read(cursor)
        ordered = [each for each in ordered if key(each) > last]
    shown = ordered[:PAGE]
    more = len(ordered) > PAGE
    return shown, _write(key(shown[-1])) if more else None


def _write(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode("utf-8", "surrogatepass")).decode()


def _read(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise MCPError(INVALID_PARAMS, "The cursor is invalid.") from None


_MOST_QUERY_WORDS = 16
_MOST_DESCRIPTION = 2_000
"""Number of indexed characters of a description."""
_NAME, _PARAMETER, _DESCRIPTION = 4.0, 1.5, 1.0
_BEGINNING = 0.5
"""Weight of a word that has only a common beginning with the query's word."""
_SHORTEST_BEGINNING = 3
_HUMP = re.compile(r"([a-z0-9])([A-Z])")
_WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ing", "ies", "es", "ed", "s")
_COMMON = frozenset(["a", "an", "and", "for", "in", "of", "on", "or", "the", "to", "with"])


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without common words and without endings."""
    found = _WORD.findall(_HUMP.sub(r"\1 \2", text).lower())
    return [_stem(word) for word in found if word not in _COMMON]


class ToolIndex:
    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._names = [tool.name for tool in tools]
        self._weights: defaultdict[str, dict[int, float]] = defaultdict(dict)
        """Word -> tool number -> weight."""
        for number, tool in enumerate(tools):
            parameters = " ".join(map(str, tool.input_schema.get("properties", {})))
            self._add(number, tool.description[:_MOST_DESCRIPTION], _DESCRIPTION)
            self._add(number, parameters, _PARAMETER)
            self._add(number, tool.name, _NAME)

    def _add(self, number: int, text: str, weight: float) -> None:
        for word in words(text):
            self._weights[word][number] = weight

    def find(self, query: str) -> list[str]:
        """Return the names of the matching tools, best first."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)[:_MOST_QUERY_WORDS]):
            matches = self._matches(word)
            rarity = math.log(1 + len(self._names) / (1 + len(matches)))
            for number, weight in matches.items():
                scores[number] += weight * rarity
        wanted = query.strip().lower()
        return [
            self._names[number]
            for number in sorted(
                scores,
                key=lambda each: (
                    self._names[each].lower() != wanted,
                    -scores[each],
                    self._names[each],
                ),
            )
        ]

    def _matches(self, word: str) -> dict[int, float]:
        found: dict[int, float] = {}
        for known, tools in self._weights.items():
            share = 1.0 if known == word else _BEGINNING if _begins_alike(known, word) else 0.0
            if share:
                for number, weight in tools.items():
                    found[number] = max(found.get(number, 0.0), weight * share)
        return found


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_BEGINNING:
            return word.removesuffix(ending)
    return word


def _begins_alike(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) >= _SHORTEST_BEGINNING and long.startswith(short)


FIND, CALL = "find_tools", "call_tool"
_FOUND, _MOST_FOUND = 5, 20
_MOST_CHARACTERS = 60_000
"""Maximum size of a response; it always contains the first match."""
_LONGEST_QUERY = 1_000

_FIND_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "Keywords: what the tool does, what it works on, or its name.",
            "minLength": 1,
            "maxLength": _LONGEST_QUERY,
        },
        "limit": {
            "type": "integer",
            "description": "Maximum number of tools to return.",
            "minimum": 1,
            "maximum": _MOST_FOUND,
            "default": _FOUND,
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}
_CALL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Name of a tool, as find_tools returned it."},
        "arguments": {
            "type": "object",
            "description": "Arguments of that tool, by its inputSchema.",
        },
    },
    "required": ["name"],
    "additionalProperties": False,
}


class NamedCall(NamedTuple):
    """The tool and the arguments in a request of `call_tool`."""

    name: str
    arguments: dict[str, Any]


class ToolSearch:
    """Decides whether a search replaces a list of tools, and runs the search."""

    def __init__(self, search_above: int) -> None:
        """`search_above` 0: no list is replaced."""
        self._above = search_above
        self._indexed: tuple[list[ToolDefinition], ToolIndex] | None = None
        """The last searched list and its index. Most clients have the same list."""

    def replaces(self, tools: Sequence[Registered]) -> bool:
        """Return whether the list is too long."""
        return 0 < self._above < len(tools)

    def schema_of(self, name: str) -> dict[str, Any] | None:
        """Return the input schema of one of the two tools; None for any other name."""
        if not self._above:
            return None
        return {FIND: _FIND_SCHEMA, CALL: _CALL_SCHEMA}.get(name)

    async def find(
        self, arguments: Mapping[str, Any], tools: Mapping[str, types.Tool], of: list[Registered]
    ) -> dict[str, Any]:
        """Answer `find_tools`. `tools` are the client's tools by their registered names."""
        query, limit = _query(arguments)
        definitions = [each.definition for each in of]
        if self._indexed is None or self._indexed[0] != definitions:
            index = await asyncio.to_thread(ToolIndex, definitions)
            self._indexed = (definitions, index)
        index = self._indexed[1]
        matches = [name for name in await asyncio.to_thread(index.find, query) if name in tools]
        return _answer([_shape(tools[name]) for name in matches[:limit]], len(matches), query)


def listed(tools: Sequence[Registered]) -> list[types.Tool]:
    """Return the two tools that replace a long list."""
    return [
        types.Tool(
            name=CALL,
            description=(
                "Call a tool that find_tools returned. The call is checked and recorded as a call "
                "of the named tool, which may need the approval of the user."
            ),
            input_schema=_CALL_SCHEMA,
            annotations=types.ToolAnnotations(
                read_only_hint=False, destructive_hint=True, open_world_hint=True
            ),
        ),
        types.Tool(
            name=FIND,
            description=(
                f"Search the {len(tools)} tools that are available here{_servers(tools)}. Returns "
                "the best matches with their descriptions and input schemas. Use this before "
                "call_tool, and again for every other task."
            ),
            input_schema=_FIND_SCHEMA,
            annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        ),
    ]


def named_call(arguments: Mapping[str, Any]) -> NamedCall:
    """Return the call in a request of `call_tool`. Raises `ToolValidationError`."""
    name, given = arguments.get("name"), arguments.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ToolValidationError("call_tool needs 'name': the name of a tool from find_tools.")
    if not isinstance(given, dict):
        raise ToolValidationError("'arguments' of call_tool must be an object.")
    if extra := sorted(set(arguments) - {"name", "arguments"}):
        raise ToolValidationError(
            f"call_tool has no parameter {extra[0][:100]!r}. Put the arguments of the named tool "
            "into 'arguments'."
        )
    return NamedCall(name, given)


def _query(arguments: Mapping[str, Any]) -> tuple[str, int]:
    query, limit = arguments.get("query"), arguments.get("limit", _FOUND)
    if not isinstance(query, str) or not 0 < len(query.strip()) <= len(query) <= _LONGEST_QUERY:
        raise ToolValidationError(
            f"find_tools needs 'query': keywords, at most {_LONGEST_QUERY} characters."
        )
    if type(limit) is not int or not 1 <= limit <= _MOST_FOUND:
        raise ToolValidationError(f"'limit' of find_tools must be 1 to {_MOST_FOUND}.")
    if extra := sorted(set(arguments) - {"query", "limit"}):
        raise ToolValidationError(f"find_tools has no parameter {extra[0][:100]!r}.")
    return query, limit


def _answer(shown: list[dict[str, Any]], matches: int, query: str) -> dict[str, Any]:
    size, fitting = 0, list[dict[str, Any]]()
    for each in shown:
        size += len(json.dumps(each))
        if fitting and size > _MOST_CHARACTERS:
            break
        fitting.append(each)
    value: dict[str, Any] = {"tools": fitting, "matches": matches}
    if not fitting:
        value["hint"] = f"No tool matches {query[:100]!r}. Try other or fewer keywords."
    text = json.dumps(value, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": value,
        "isError": False,
    }


def _shape(tool: types.Tool) -> dict[str, Any]:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def _servers(tools: Sequence[Registered]) -> str:
    """Return a phrase with the MCP servers' names, which the user has chosen."""
    names = (each.name.split("__") for each in tools)
    found = sorted(
        {segments[1] for segments in names if segments[0] == "mcp" and len(segments) > 2}
    )
    return f", of callgate and of {', '.join(found[:20])}" if found else ""
