"""The first words with a host: its config is checked, it is begun, it says what it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from callgate.protocol.host_v1 import frames
from callgate.sources.hosts.links import Link, Refused

CheckConfig = Callable[[dict[str, Any], dict[str, Any]], None]
"""Raises a `ToolError` where a config breaks its host's schema."""


class Started(msgspec.Struct, frozen=True):
    """What a host said of itself when it was started."""

    state: dict[str, Any]
    schemas: list[dict[str, Any]]
    methods: frozenset[str] | None
    """Those that it answers; None: it did not say, and is asked."""


async def begin(link: Link, config: dict[str, Any], check: CheckConfig) -> Started:
    await _check(link, config, check)
    offer = frames.Offer(answers=sorted(frames.OF_RUNTIME))
    begun = (await link.ask(frames.Init(config=config, runtime=offer))[1]).result
    state = {} if begun.state is msgspec.UNSET else begun.state
    listed = await link.ask(frames.GetToolSchemas(state=state))[1]
    if listed.result.state is not msgspec.UNSET:
        state = listed.result.state
    announced = begun.host
    methods = None
    if isinstance(announced, frames.Announcement) and announced.methods is not msgspec.UNSET:
        methods = frozenset(announced.methods)
    return Started(state, listed.result.value, methods)


async def _check(link: Link, config: dict[str, Any], check: CheckConfig) -> None:
    """The config against the host's own schema, before the host sees it."""
    try:
        schema = (await link.ask(frames.GetConfigSchema())[1]).result.value
    except Refused:
        return  # it has none, or only after `init`
    if schema:
        check(schema, config)
