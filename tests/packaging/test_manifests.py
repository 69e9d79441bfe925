"""What registries read of us: `server.json`, `agent.json`, its icon, the README's marker."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from callgate.cli.command_line import read, split
from callgate.core.version import __version__

PROJECT = Path(__file__).parents[2]
URI = {"type": "string", "format": "uri"}
TEXTS = {"type": "array", "items": {"type": "string"}}
INPUT = {
    "type": "object",
    "properties": {
        "type": {"enum": ["positional", "named"]},
        "name": {"type": "string", "minLength": 1},
        "value": {"type": "string"},
        "description": {"type": "string"},
        "format": {"enum": ["string", "number", "boolean", "filepath"]},
    },
    "additionalProperties": False,
}
SERVER: dict[str, Any] = {
    # As release 2025-12-11 of the MCP registry's schema has it, as far as our file goes.
    "type": "object",
    "required": ["$schema", "name", "description", "version", "packages"],
    "properties": {
        "$schema": {"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"},
        "name": {"type": "string", "minLength": 3, "maxLength": 200, "pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "maxLength": 255},
        "packages": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["registryType", "identifier", "transport"],
                "properties": {
                    "registryType": {"enum": ["npm", "pypi", "oci", "nuget", "mcpb", "cargo"]},
                    "identifier": {"type": "string"},
                    "version": {"type": "string", "minLength": 1, "not": {"const": "latest"}},
                    "runtimeHint": {"type": "string"},
                    "transport": {
                        "type": "object",
                        "required": ["type"],
                        "properties": {"type": {"const": "stdio"}},
                        "additionalProperties": False,
                    },
                    "packageArguments": {"type": "array", "items": {**INPUT, "required": ["type"]}},
                    "environmentVariables": {"type": "array", "items": {**INPUT, "required": ["name"]}},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
AGENT: dict[str, Any] = {
    # As the ACP registry's agent.schema.json has it.
    "type": "object",
    "required": ["id", "name", "version", "description", "distribution", "license_url"],
    "properties": {
        "id": {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"},
        "name": {"type": "string", "minLength": 1},
        "version": {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"},
        "description": {"type": "string", "minLength": 1},
        "repository": URI,
        "website": URI,
        "authors": TEXTS,
        "license": {"type": "string"},
        "license_url": URI,
        "distribution": {
            "type": "object",
            "minProperties": 1,
            "properties": {
                "uvx": {
                    "type": "object",
                    "required": ["package"],
                    "properties": {"package": {"type": "string"}, "args": TEXTS},
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}


def manifest(name: str) -> Any:
    return json.loads((PROJECT / name).read_text())


@pytest.mark.parametrize(("name", "schema"), [("server.json", SERVER), ("agent.json", AGENT)])
def test_a_manifest_fits_its_registrys_schema(name: str, schema: dict[str, Any]) -> None:
    check = jsonschema_rs.validator_for(schema, validate_formats=True)
    assert [str(error) for error in check.iter_errors(manifest(name))] == []
    wrong = {**manifest(name), "version": 7}
    assert not check.is_valid(wrong)


def test_all_versions_are_that_of_the_package() -> None:
    server, agent = manifest("server.json"), manifest("agent.json")
    versions = [server["version"], server["packages"][0]["version"], agent["version"]]
    assert versions == [__version__] * 3
    assert agent["distribution"]["uvx"]["package"] == f"callgate=={__version__}"


def test_the_readme_names_the_server_where_the_registry_looks_for_it() -> None:
    found = re.findall(r"<!-- mcp-name: (\S+) -->", (PROJECT / "README.md").read_text())
    assert found == [manifest("server.json")["name"]]


def test_the_commands_of_both_are_ours() -> None:
    [package] = manifest("server.json")["packages"]
    fixed = [each["value"] for each in package["packageArguments"] if each["type"] == "positional"]
    named = [each["name"] for each in package["packageArguments"] if each["type"] == "named"]
    name, words = split([*fixed, *(word for each in named for word in (each, "x"))])
    assert (name, read(name, words).workspace) == ("mcp serve", "x")
    name, words = split(manifest("agent.json")["distribution"]["uvx"]["args"])
    assert (name, words) == ("acp", [])


def test_the_icon_is_small_and_takes_the_editors_colour() -> None:
    text = (PROJECT / "icon.svg").read_text()
    icon = ElementTree.fromstring(text)
    assert (icon.get("width"), icon.get("height"), icon.get("viewBox")) == ("16", "16", "0 0 16 16")
    colours = {value for each in icon.iter() for key in ("fill", "stroke") if (value := each.get(key))}
    assert colours == {"none", "currentColor"}
    assert "<script" not in text and "href" not in text
