"""Descriptions of tools and of packages of tools, as pages and rows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from callgate.cli.errors import CliError
from callgate.cli.ui.visible import visible, visible_text
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.sources.installed_packs import Entry, installed

_EFFECTS = {
    "none": "nothing outside itself",
    "read": "reads, changes nothing",
    "write": "changes files or data",
    "execute": "runs programs",
    "network": "reaches other machines",
}
_SOURCES = {"builtin": "callgate itself"}


def tool_page(tool: Mapping[str, Any]) -> str:
    """Return a page about a tool, from the description of `callgate.socket.queries.every`."""
    schema, effect = tool["input_schema"], visible(tool["side_effects"])
    rows = [
        f"{visible(tool['name'])}: {visible_text(tool['description'].strip())}",
        "",
        f"effect   {effect}: {_EFFECTS[effect]}" if effect in _EFFECTS else f"effect   {effect}",
        f"source   {visible(_SOURCES.get(tool['source'], tool['source']))}",
        f"limit    {tool['timeout_s']:g} s",
    ]
    if tool["aliases"]:
        rows.append(f"also     {visible(', '.join(tool['aliases']))}")
    if not tool["visible"]:
        rows.append(f"hidden   {visible(tool['hidden_because'])}")
    rows += ["", "parameters"]
    required = schema.get("required", ())
    for key, each in schema.get("properties", {}).items():
        rows += _parameter(key, each if isinstance(each, dict) else {}, key in required)
    if not schema.get("properties"):
        rows.append("  none")
    return "\n".join([*rows, "", "example", f"  {_example(tool['name'], schema)}"])


def _parameter(key: str, schema: Mapping[str, Any], required: bool) -> list[str]:
    facts = [_kind(schema), "required" if required else "optional"]
    if "default" in schema:
        facts.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
    if "enum" in schema:
        facts.append("one of " + ", ".join(map(str, schema["enum"])))
    rows = [f"  {visible(key)}  {visible(', '.join(facts))}"]
    if isinstance(text := schema.get("description"), str) and text.strip():
        rows.append(f"    {visible(text.strip())}")
    return rows


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "value")
    return kind if isinstance(kind, str) else " or ".join(map(str, kind))


def _example(name: str, schema: Mapping[str, Any]) -> str:
    """Return a sample command line with the required arguments."""
    properties = schema.get("properties", {})
    needed = [key for key in schema.get("required", ()) if key in properties]
    words = [f"{key}={_value(key, properties[key])}" for key in needed]
    return visible(" ".join(["callgate call", name, *map(shlex.quote, words)]))


def _value(key: str, schema: Any) -> str:
    if not isinstance(schema, dict):
        return key.upper()
    for known in ("examples", "enum"):
        if isinstance(found := schema.get(known), list) and found:
            return found[0] if isinstance(found[0], str) else json.dumps(found[0])
    plain = {"integer": "1", "number": "1", "boolean": "true", "array": "[]", "object": "{}"}
    return plain.get(_kind(schema), key.upper())


def pack_rows() -> list[dict[str, Any]]:
    """Return the packages that are not enabled or not usable, with the reasons."""
    try:
        enabled = load_user(Home.from_environment())[0].packs.enable
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
    entries = installed("callgate.tools")
    return [_row(each) for each in entries if each.problem or each.name not in enabled]


def _row(entry: Entry) -> dict[str, Any]:
    enable = f"it is not enabled: add {entry.name!r} to [packs] enable in your settings"
    return {
        "name": entry.name,
        "side_effects": "",
        "capabilities": [],
        "description": f"A package of tools: {entry.package}",
        "input_schema": {},
        "aliases": [],
        "source": "package",
        "timeout_s": 0.0,
        "visible": False,
        "hidden_because": entry.problem or enable,
    }
