"""What the tests of schemas share: a function with one parameter, and what may be said of it."""

from __future__ import annotations

from typing import Any

from callgate.sources.functions import tool

ALLOWED = {
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "items",
    "description",
    "format",
    "title",
    "default",
    "examples",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "additionalProperties",
}


def function_with(annotation: Any) -> Any:
    def probe(thing: Any) -> None: ...

    probe.__annotations__ = {"thing": annotation}
    return probe


def schema_of(annotation: Any) -> dict[str, Any]:
    """The schema of one parameter of this type."""
    schema = tool(function_with(annotation), side_effects="none").definition.input_schema
    assert schema.keys() == {"type", "properties", "required"}
    assert schema["required"] == ["thing"]
    return schema["properties"]["thing"]  # type: ignore[no-any-return]


def keywords(schema: Any) -> set[str]:
    """Every keyword at any depth."""
    found = set(schema)
    for child in schema.get("properties", {}).values():
        found |= keywords(child)
    if "items" in schema:
        found |= keywords(schema["items"])
    return found
