"""The client that the conformance suite starts: our MCP source against a server of the suite.

    python -m tests.features.mcp.conformance.client URL

The server is one of the settings, approved, and its tools are called through the dispatcher. The
person in the browser is played here: whoever is sent to an address goes there and back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.models import Model, ModelError, ModelErrorKind
from callgate.core.sessions import Mode, Session
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.features.mcp.client.definitions import model_name
from callgate.features.mcp.client.server_requests import DispatchedAsks
from callgate.features.mcp.client.server_tools import McpTools
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.settings import McpSettings, McpTable, OAuthTable
from callgate.features.mcp.wiring import make_servers
from callgate.instance.wiring.runtime import Wired

SERVER = "suite"
_ANY = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}
_SECRET = "MCP_SUITE_SECRET"
_METADATA = "https://conformance-test.local/client-metadata.json"
"""Where the suite expects a client to describe itself."""


def calls_of(scenario: str, context: dict[str, Any], tools: list[dict[str, Any]]) -> list[Any]:
    """The tools that a scenario wants to be called, and their arguments."""
    names = {each["name"] for each in tools}
    match scenario:
        case "tools_call" | "request-metadata" | "http-standard-headers":
            wanted = [("add_numbers", {"a": 5, "b": 3})]
        case "sse-retry":
            wanted = [("test_reconnection", {})]
        case "elicitation-sep1034-client-defaults":
            wanted = [("test_client_elicitation_defaults", {})]
        case "sep-2322-client-request-state":
            each = ("echo_state", "unrelated", "no_state", "no_result_type")
            wanted = [(f"test_mrtr_{name}", {}) for name in each]
        case "http-custom-headers":
            wanted = [(each["name"], _said(each)) for each in context["toolCalls"]]
        case "json-schema-2020-12-preservation":
            focal = next(each for each in tools if each["name"] == "json_schema_2020_12_tool")
            wanted = [("json_schema_echo", {"schema": focal["inputSchema"]})]
        case "initialize" | "json-schema-ref-no-deref":
            wanted = []
        case _:  # also every auth scenario: whatever there is
            wanted = [(each["name"], _least(each["inputSchema"])) for each in tools]
    return [(name, arguments) for name, arguments in wanted if name in names]


def _said(call: dict[str, Any]) -> dict[str, Any]:
    """Without what is null: the schema does not allow it there, and so the gate does not."""
    given = call.get("arguments") or {}
    return {name: value for name, value in given.items() if value is not None}


def _least(schema: dict[str, Any]) -> dict[str, Any]:
    known = schema.get("properties", {})
    return {name: _ANY.get(known.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


def _go_there_and_back(url: str) -> None:
    """In a thread: whoever waits for us to come back is in the loop."""

    def go() -> None:
        httpx2.get(url, follow_redirects=True, timeout=20)

    threading.Thread(target=go, daemon=True).start()


def _table(url: str, context: dict[str, Any]) -> McpTable:
    said: dict[str, Any] = {"port": _own_port()}
    if "client_id" in context:
        said["client_id"] = context["client_id"]
        if "client_secret" in context:
            os.environ[_SECRET] = context["client_secret"]
            said["client_secret_env"] = _SECRET
    else:
        said["client_metadata_url"] = _METADATA
    return McpTable(
        url=url,
        oauth=msgspec.convert(said, OAuthTable),
        sampling=True,
        login_hosts=["localhost:*", "127.0.0.1:*"],  # the suite's login server has a port of its own
    )


def _own_port() -> int:
    """Many clients run side by side, and some come back twice: nobody else picks this one, and
    it is below those that the system gives out."""
    return 10_000 + os.getpid() % 20_000


def _no_model() -> Model:
    raise ModelError(ModelErrorKind.KEY, "There is no model here.")


async def _yes(question: Confirmation) -> bool:
    return True


async def run(url: str, directory: Path) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    wired = Wired(Home(str(directory)))
    wired.home.make()
    session = wired.session(str(directory), Mode.WRITE)
    part = McpSettings(mcp={SERVER: _table(url, context)})
    settings = msgspec.structs.replace(wired.settings, parts={McpSettings.owner: part})
    registry = wired.registry
    asks = DispatchedAsks(wired.runtime.calls.run, registry, _no_model)
    servers = make_servers(wired.home, settings, wired.sandbox, str(directory), asks, _go_there_and_back)
    try:
        said = await servers.ask(SERVER, ServerLocation(str(directory)))
        servers.pin_first(SERVER, said)
        registry.add(McpTools(servers, registry))
        with wired.runtime.permission.attach(_yes):
            for name, arguments in calls_of(scenario, context, said.schemas):
                await _call(wired, session, name, arguments)
    finally:
        await servers.close()
        await wired.close()


async def _call(wired: Wired, session: Session, name: str, arguments: Any) -> None:
    result = await wired.runtime.calls.run(
        ToolCall(
            tool=model_name(SERVER, name),
            arguments=arguments,
            session=session,
            caller=CallerKind.LIBRARY,
        )
    )
    print(name, result.ok, result.text[:200], file=sys.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(run(sys.argv[1], Path(made)))
