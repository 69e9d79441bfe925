"""Protocol checks that send requests to a running host. No check runs a tool.

To add a check, write a function of a `Subject` that returns its observation or raises `Unmet`, and
put it into `PROBES`. `protocols/host_v1/README.md` describes the protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import UNSET

from callgate.cli.hosts.conversation import HostConversation, Unmet
from callgate.core.errors import ToolRegistrationError
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.frames import excerpt
from callgate.protocol.host_v1.values import ToolSchema, read_schemas
from callgate.protocol.strict_json import MAX_LINE, line

START_S = 30.0
"""Time limit of the first `init`, equal to the default of the settings."""
BIG = 4 * 1024 * 1024
_PROTOCOL, _NO_METHOD = "ProtocolError", "MethodNotFound"
_SCHEMAS = frames.GetToolSchemas


class Subject:
    """A running host, and its answers so far."""

    def __init__(self, conversation: HostConversation, config: dict[str, Any]) -> None:
        self.conversation = conversation
        self.config = config
        self.state: dict[str, Any] = {}
        self.methods: frozenset[str] | None = None
        """The methods that it announced; None if it announced none."""
        self.tools: list[ToolSchema] = []
        self._ids = itertools.count(1)

    def id(self) -> str:
        return f"check-{next(self._ids)}"

    async def ask(self, params: frames.OfHost, timeout_s: float | None = None) -> frames.Answer:
        """Send a request. Raises `Unmet` if there is no valid answer."""
        id = self.id()
        return await self.conversation.answer(
            line(frames.ask(id, params)), id, type(params), timeout_s
        )

    async def raw(self, frame: dict[str, Any], params_type: type = object) -> frames.Answer:
        """Send a frame as it is, with an id."""
        id = self.id()
        return await self.conversation.answer(line({"v": 1, "id": id, **frame}), id, params_type)

    async def is_there(self) -> None:
        """Check that the host still answers after a wrong request."""
        try:
            returned(await self.ask(_SCHEMAS(state=self.state)))
        except Unmet as unmet:
            raise type(unmet)(f"the next request was not answered: {unmet}") from None


def returned(answer: frames.Answer) -> frames.Result:
    if isinstance(answer, frames.Failed):
        raise Unmet(f"it failed: {_failure(answer)}")
    return answer.result


def refused(answer: frames.Answer, kind: str) -> str:
    if isinstance(answer, frames.Returned):
        raise Unmet(f"answered with ok instead of {kind}")
    if answer.error.type != kind:
        raise Unmet(f"answered with {_failure(answer)} instead of {kind}")
    return kind


def _failure(failed: frames.Failed) -> str:
    return f"{excerpt(failed.error.type)}: {excerpt(failed.error.detail)}"


async def init(host: Subject) -> str:
    result = returned(await host.ask(frames.Init(config=host.config), START_S))
    assert result.state is not UNSET  # `answers.fitting` gives every init one
    host.state = result.state
    announced = UNSET if result.host is UNSET else result.host.methods
    if announced is UNSET:
        return "answered"
    host.methods = frozenset(announced)
    if missing := frames.REQUIRED - host.methods:
        raise Unmet(f"it announces no {', '.join(sorted(missing))}")
    return f"answered; it announces {len(host.methods)} methods"


async def _tools(host: Subject) -> str:
    result = returned(await host.ask(_SCHEMAS(state=host.state)))
    try:
        host.tools = read_schemas(result.value, "that is checked")
    except ToolRegistrationError as error:
        raise Unmet(str(error)) from None
    if not host.tools:
        raise Unmet("it describes no tool")
    return ", ".join(excerpt(each.name) for each in host.tools)


async def _state(host: Subject) -> str:
    """Check the state in an answer. `answers.fitting` rejects a state that is not an object."""
    result = returned(await host.ask(_SCHEMAS(state=host.state)))
    if result.state is UNSET:
        return "unchanged"
    return "returned" if result.state == host.state else "returned, changed"


async def _second_init(host: Subject) -> str:
    """Check a second `init`, because each session sends one."""
    params = {"config": host.config, "runtime": {"answers": []}}
    frame = {"method": "init", "params": params}
    returned(await host.raw(frame, frames.Init))
    return "answered, for another session"


async def _unknown_method(host: Subject) -> str:
    for method in ("no_such_method", "Init", "__proto__"):
        refused(await host.raw({"method": method, "params": {}}), _NO_METHOD)
    await host.is_there()
    return _NO_METHOD


async def _version(host: Subject) -> str:
    for version in (2, 0, "1", None):
        frame: dict[str, Any] = {"v": version, "method": "get_tool_schemas", "params": {}}
        refused(await host.raw(frame), _PROTOCOL)
    await host.is_there()
    return _PROTOCOL


async def _not_json(host: Subject) -> str:
    return await _complained(host, b"{", b"no JSON", b'{"v":1,"id":"cut","method":', b"\xff")


async def _no_request(host: Subject) -> str:
    wrong = (
        b"[]",
        b"null",
        b'"text"',
        b'{"v":1,"method":"get_tool_schemas"}',
        b'{"v":1,"id":7,"method":"get_tool_schemas"}',
    )
    return await _complained(host, *wrong)


async def _long_line(host: Subject) -> str:
    return await _complained(host, b'{"v":1,"id":"long","pad":"' + b"x" * MAX_LINE + b'"}')


async def _complained(host: Subject, *lines: bytes) -> str:
    for each in lines:
        try:
            refused(await host.conversation.answer(each + b"\n", None), _PROTOCOL)
            await host.is_there()
        except Unmet as unmet:
            raise type(unmet)(f"{unmet} (it was sent {_short(each)})") from None
    return f"{_PROTOCOL} with the id null"


def _short(sent: bytes) -> str:
    return excerpt(sent) if len(sent) < 100 else f"{len(sent)} bytes"


async def _params(host: Subject) -> str:
    wrong: tuple[Any, ...] = ([], "text", 5)
    for params in wrong:
        frame = {"method": "get_tool_schemas", "params": params}
        refused(await host.raw(frame), _PROTOCOL)
    refused(await host.raw({"params": {}}), _PROTOCOL)
    await host.is_there()
    return _PROTOCOL


async def _absent_params(host: Subject) -> str:
    returned(await host.raw({"method": "get_tool_schemas"}, _SCHEMAS))
    return "the same as empty ones"


async def _unknown_keys(host: Subject) -> str:
    params = {"state": host.state, "no_such_param": [1]}
    frame = {"method": "get_tool_schemas", "params": params, "no_such_key": {"a": None}}
    returned(await host.raw(frame, _SCHEMAS))
    return "ignored"


async def _blanks(host: Subject) -> str:
    id = host.id()
    request = line(frames.ask(id, _SCHEMAS(state=host.state)))
    data = b"\n \t\r\n" + b" \t" + request.rstrip(b"\n") + b" \r\n\n"
    returned(await host.conversation.answer(data, id, _SCHEMAS))
    return "ignored"


async def _together(host: Subject) -> str:
    ids = [host.id() for _ in range(16)]
    data = b"".join(line(frames.ask(id, _SCHEMAS(state=host.state))) for id in ids)
    for answer in (await host.conversation.answers(data, dict.fromkeys(ids, _SCHEMAS))).values():
        returned(answer)
    return f"{len(ids)} concurrent requests, each answered with its id"


async def _big_line(host: Subject) -> str:
    frame = {"method": "get_tool_schemas", "params": {"state": host.state}, "pad": "x" * BIG}
    returned(await host.raw(frame, _SCHEMAS))
    return f"{BIG} bytes are read"


Probe = Callable[[Subject], Awaitable[str]]

PROBES: Mapping[str, Probe] = {
    "tools": _tools,
    "state": _state,
    "second init": _second_init,
    "unknown method": _unknown_method,
    "wrong version": _version,
    "not JSON": _not_json,
    "no request": _no_request,
    "wrong params": _params,
    "absent params": _absent_params,
    "unknown keys": _unknown_keys,
    "blank lines": _blanks,
    "overlapping": _together,
    "big line": _big_line,
    "line too long": _long_line,
}
"""The checks after `init`. The first is required, the others are recommended."""


async def optional(host: Subject, method: str) -> str | None:
    """Check an optional method; None if the host lacks it. A well-formed failure passes."""
    if host.methods is not None and method not in host.methods:
        return None
    answer = await host.ask(_OPTIONAL[method](host))
    if isinstance(answer, frames.Failed):
        missing = answer.error.type == _NO_METHOD
        return None if missing else f"it failed, which harms no call: {_failure(answer)}"
    return "offered" if answer.result.value is not None else None


def _name(host: Subject) -> str:
    return host.tools[0].name if host.tools else "no_such_tool"


_RESULT: dict[str, Any] = {"success": True, "result": "text"}
_OPTIONAL: Mapping[str, Callable[[Subject], frames.OfHost]] = {
    "get_config_schema": lambda host: frames.GetConfigSchema(),
    "get_ui_elements": lambda host: frames.GetUiElements(),
    "get_tags": lambda host: frames.GetTags(config=host.config),
    "required_tags": lambda host: frames.RequiredTags(),
    "format_tool_result": lambda host: frames.FormatToolResult(state=host.state, result=_RESULT),
    "format_tool_call_preview": lambda host: frames.FormatToolCallPreview(
        state=host.state, tool_name=_name(host)
    ),
    "to_display_format": lambda host: frames.ToDisplayFormat(
        state=host.state, text="text", result=_RESULT
    ),
    "cancel": lambda host: frames.Cancel(id="check-nothing"),
}
OPTIONAL = tuple(_OPTIONAL)
