"""ContextForge's plugins, driven in process with the settings that each of them ships.

The gateway's rules about tools are an allow-list by name (see `plain`). What it adds are plugins
around a call: one masks personal data, one finds secrets, one finds encoded payloads. They are
called as the gateway calls them, before and after the tool; what they change is what runs.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module, resources
from typing import Any

import msgspec
import yaml

from safety.contestants.ports import Reply, World
from safety.people import PersonKind, Reader
from safety.values import Call

_PACKAGES = ("cpex_secrets_detection", "cpex_encoded_exfil_detection", "cpex_pii_filter")


class ContextForge(msgspec.Struct, frozen=True):
    name: str
    title: str
    packages: tuple[str, ...] = _PACKAGES
    person_kind: PersonKind = "reader"

    def missing(self) -> str | None:
        absent = [each for each in ("cpex", *self.packages) if not importlib.util.find_spec(each)]
        return f"not installed: {', '.join(absent)}" if absent else None

    @asynccontextmanager
    async def open(self, world: World, prompt: str, person: Reader) -> AsyncIterator[PluginDoor]:
        yield PluginDoor(world, [_plugin(package) for package in self.packages])


class PluginDoor:
    def __init__(self, world: World, plugins: list[Any]) -> None:
        self._world = world
        self._plugins = plugins

    async def call(self, call: Call) -> Reply:
        from cpex.framework import (  # lazy: not in every environment
            ToolPostInvokePayload,
            ToolPreInvokePayload,
        )

        before, why = await self._pass(
            "tool_pre_invoke", ToolPreInvokePayload(name=call.tool, args=dict(call.arguments))
        )
        if why is not None:
            return Reply(ran=False, text=why)
        text = (await self._world.run(Call(call.tool, before.args, call.side))).text
        after, why = await self._pass(
            "tool_post_invoke", ToolPostInvokePayload(name=call.tool, result=text)
        )
        if why is None:
            return Reply(ran=True, text=str(after.result))
        return Reply(ran=True, text=why, withheld=True)

    async def _pass(self, hook: str, payload: Any) -> tuple[Any, str | None]:
        """Give the payload to each plugin; what they made of it, and why one of them stopped."""
        from cpex.framework import GlobalContext, PluginContext  # lazy: not in every environment

        context = PluginContext(global_context=GlobalContext(request_id="1"))
        for plugin in self._plugins:
            if hook not in plugin.hooks:
                continue
            result = await getattr(plugin, hook)(payload, context)
            if not result.continue_processing:
                violation = result.violation
                return payload, "blocked" if violation is None else str(violation.reason)
            payload = result.modified_payload or payload
        return payload, None


@cache
def _plugin(package: str) -> Any:
    from cpex.framework import PluginConfig  # lazy: not in every environment

    logging.getLogger(package).setLevel(logging.CRITICAL)
    manifest = yaml.safe_load(resources.files(package).joinpath("plugin-manifest.yaml").read_text())
    module, _, kind = manifest["kind"].rpartition(".")
    config = PluginConfig(
        name=package,
        kind=manifest["kind"],
        hooks=manifest["available_hooks"],
        config=manifest["default_configs"],
    )
    return getattr(import_module(module), kind)(config)
