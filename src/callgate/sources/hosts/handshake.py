"""The handshake with a host: it is initialized, lists its tools, and its config is checked.

init -> get_tool_schemas            required: without an answer there is no host
     -> get_config_schema           optional: without an answer nothing is checked
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from callgate.protocol.host_v1 import frames
from callgate.sources.hosts.in_flight import HostError, InvalidAnswer, Refused
from callgate.sources.hosts.links import HostExited, Link
from callgate.sources.hosts.optional import PATIENCE_S, OptionalMethods

CheckConfig = Callable[[dict[str, Any], dict[str, Any]], None]
"""Raises a `ToolError` where a config breaks its host's schema."""
_SCHEMA = "get_config_schema"


class AnswerTimeout(HostError):
    """A required method was not answered in time."""

    def __init__(self, method: str, timeout_s: float) -> None:
        super().__init__(f"it did not answer {method} within {timeout_s:g} s")


class OptionalMethodCrash(HostError):
    """It ended when it was asked for something optional: asked for less, it may serve."""


class Started(msgspec.Struct, frozen=True):
    """What a host said of itself when it was started."""

    state: dict[str, Any]
    schemas: list[dict[str, Any]]
    methods: frozenset[str] | None
    """Those that it answers; None: it did not say, and is asked."""


async def handshake(
    link: Link,
    config: dict[str, Any],
    check: CheckConfig,
    optional: OptionalMethods,
    timeout_s: float,
) -> Started:
    """Raises a `HostError`, and what `check` raises."""
    until = asyncio.get_running_loop().time() + timeout_s

    async def required(params: frames.OfHost) -> frames.Result:
        try:
            async with asyncio.timeout_at(until):
                return (await link.ask(params)[1]).result
        except TimeoutError:
            raise AnswerTimeout(frames.METHODS[type(params)], timeout_s) from None

    offer = frames.Offer(answers=sorted(frames.OF_RUNTIME))
    begun = await required(frames.Init(config=config, runtime=offer))
    state = {} if begun.state is msgspec.UNSET else begun.state
    listed = await required(frames.GetToolSchemas(state=state))
    if listed.state is not msgspec.UNSET:
        state = listed.state
    announced = begun.host
    methods = None
    if isinstance(announced, frames.Announcement) and announced.methods is not msgspec.UNSET:
        methods = frozenset(announced.methods)
    if optional.worth_asking(_SCHEMA, methods):
        schema = await _config_schema(link, optional)
        if schema:
            check(schema, config)
    return Started(state, listed.value, methods)


async def _config_schema(link: Link, optional: OptionalMethods) -> Any:
    id, outcome = link.ask(frames.GetConfigSchema())
    try:
        async with asyncio.timeout(PATIENCE_S):
            schema = (await outcome).result.value
    except HostExited as exited:
        optional.missing([_SCHEMA])
        raise OptionalMethodCrash(
            f"{exited} when it was asked for {_SCHEMA}, which is optional"
        ) from exited
    except TimeoutError:
        link.abandon(id)
        optional.ignored(_SCHEMA)
        return None
    except Refused:
        optional.missing([_SCHEMA])
        return None
    except InvalidAnswer:
        return None
    optional.answered(_SCHEMA)
    return schema
