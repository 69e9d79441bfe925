"""Pydantic models as parameters, for authors who use them; pydantic is never imported here.

The schema pydantic writes uses references and `anyOf`. What of it the subset can say is said
there; a field for which it cannot is refused by name.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from callgate.sources.constraints import describe, limit, refuse
from callgate.sources.unions import join

Schema = dict[str, Any]

_COPIED_KEYWORDS = frozenset(
    {
        "type",
        "enum",
        "required",
        "description",
        "format",
        "examples",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
    }
)
_EXCLUSIVE = {"exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_PATHS = frozenset({"path", "file-path", "directory-path"})
_REFERENCE = "#/$defs/"


def is_model(kind: type) -> bool:
    """Whether pydantic made this class."""
    return "pydantic" in sys.modules and hasattr(kind, "__pydantic_core_schema__")


def model_schema(kind: Any, label: str) -> Schema:
    if not hasattr(kind, "model_json_schema"):
        refuse(label, f"{kind.__qualname__} is a pydantic dataclass: use a model or a dataclass")
    try:
        written = kind.model_json_schema()
    except Exception as error:  # pydantic's own error classes are not ours to import
        refuse(label, f"pydantic has no schema for {kind.__qualname__}: {error}")
    return _Reader(written.get("$defs", {})).read(written, label, ())


def build_model(kind: Any, value: Any) -> Any:
    """A validated instance; raises `ValueError` in words for the agent."""
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        problems = getattr(error, "errors", None)
        if problems is None:
            raise
        lines = [
            ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"]]))
            for each in problems(include_url=False, include_input=False, include_context=False)
        ]
        raise ValueError("; ".join(lines)) from None


class _Reader:
    """One model's schema, read with the definitions that stand beside it."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions

    def read(self, schema: Schema, label: str, inside: tuple[str, ...]) -> Schema:
        keywords = {k: v for k, v in schema.items() if k not in ("title", "$defs", "default")}
        result: Schema = {}
        if reference := keywords.pop("$ref", None):
            result = self._referred(reference, label, inside)
        elif members := keywords.pop("anyOf", None):
            result = join([self.read(each, label, inside) for each in members], label)
        for keyword, value in keywords.items():
            result.update(self._keyword(keyword, value, schema, label, inside))
        if "default" in schema:
            return describe(result, None, schema["default"])
        return result

    def _referred(self, reference: str, label: str, inside: tuple[str, ...]) -> Schema:
        name = reference.removeprefix(_REFERENCE)
        if name in inside:
            refuse(label, f"{name} contains itself, which a schema cannot say")
        return self.read(self.definitions[name], label, (*inside, name))

    def _keyword(
        self, keyword: str, value: Any, schema: Schema, label: str, inside: tuple[str, ...]
    ) -> Schema:
        if keyword == "format" and value in _PATHS:
            refuse(
                label,
                "a Path inside another value is hidden from the workspace's wall: "
                "make it a parameter",
            )
        if keyword in _COPIED_KEYWORDS or (
            keyword == "additionalProperties" and isinstance(value, bool)
        ):
            return {keyword: value}
        if keyword == "const":
            return {"enum": [value]}
        if keyword == "properties":
            return {
                "properties": {
                    name: self.read(each, f"{label}.{name}", inside) for name, each in value.items()
                }
            }
        if keyword == "items" and isinstance(value, dict):
            return {"items": self.read(value, f"{label}[]", inside)}
        if keyword in _EXCLUSIVE:
            return limit(_EXCLUSIVE[keyword], value, schema.get("type", ""), label)
        return refuse(label, f"{keyword} cannot be said in a schema here")
