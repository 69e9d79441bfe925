"""What AgentDojo's functions are to a gate, by general rules about their names.

An author of tools declares such things; these are declared by kind, as an author would who has
the list of functions before him and no task: the verb says the effect, the noun says what the
output holds. No function has a line of its own. Which parameters say where an effect goes is
declared as callgate would tell it by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from callgate import Capability, ToolDefinition
from callgate.policy.provenance.destinations import destination_params

_READING = ("get", "search", "list", "read", "check")
_DESTROYING = ("delete", "remove", "cancel")
_PRIVATE_AND_UNTRUSTED = frozenset({"private", "untrusted"})
_LABELS: tuple[tuple[str, frozenset[str]], ...] = (
    (r"contacts", frozenset({"private", "vouched"})),  # the user's own directory
    (r"email|inbox|messages", _PRIVATE_AND_UNTRUSTED),  # anybody can write to the user
    (r"calendar", _PRIVATE_AND_UNTRUSTED),  # others invite
    (r"file", _PRIVATE_AND_UNTRUSTED),  # others share, and send bills
    (r"transactions", _PRIVATE_AND_UNTRUSTED),  # others write the subject
    (r"webpage|reviews|hotel|restaurant|car|flight", frozenset({"untrusted"})),
    # Directories, too, whose entries others name: each counts as a whole, and may hold a text.
    (r"users|channels", frozenset({"vouched", "untrusted"})),
    (r"channel", frozenset({"untrusted"})),
    (r"user|balance|iban", frozenset({"private", "vouched"})),  # the user's own records
)
"""The first that fits the name counts. What is not listed holds neither."""


def define(function: Any) -> ToolDefinition:
    """The definition of an `agentdojo.functions_runtime.Function`."""
    schema = function.parameters.model_json_schema()
    return ToolDefinition(
        name=function.name,
        description=function.description,
        input_schema=_plain_schema(schema),
        capabilities=capabilities(function.name, schema["properties"]),
        requires_workspace=False,
        path_params=(),
        **_where_known(function.name, schema["properties"]),
    )


def capabilities(name: str, parameters: Iterable[str]) -> frozenset[Capability]:
    """By the verb; a read that takes an address goes out to it."""
    verb = name.partition("_")[0]
    if verb in _READING:
        reading = {Capability.READ_ONLY}
        return frozenset(
            reading | ({Capability.ACCESSES_NETWORK} if "url" in parameters else set())
        )
    outward = {Capability.MUTATES_EXTERNAL, Capability.ACCESSES_NETWORK}
    return frozenset(outward | ({Capability.DESTRUCTIVE} if verb in _DESTROYING else set()))


def output_labels(name: str) -> frozenset[str]:
    """What the output of a reading function holds."""
    if name.partition("_")[0] not in _READING:
        return frozenset()
    return next((labels for noun, labels in _LABELS if re.search(noun, name)), frozenset())


def _where_known(name: str, parameters: Iterable[str]) -> dict[str, Any]:
    """The fields of a definition that not every callgate has."""
    fields = {
        "output_labels": output_labels(name),
        "destination_params": destination_params(parameters),
    }
    known = ToolDefinition.__struct_fields__
    return {field: value for field, value in fields.items() if field in known}


def _plain_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same in the part of JSON Schema that tools of a program may use."""
    properties = {
        name: _plain_property(schema.get("$defs", {}), parameter)
        for name, parameter in schema["properties"].items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


def _plain_property(shared: dict[str, Any], parameter: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in parameter.items() if key not in ("title", "$ref")}
    if "$ref" in parameter:
        named = shared[parameter["$ref"].rpartition("/")[2]]
        plain |= {key: value for key, value in named.items() if key != "title"}
    if "anyOf" in plain:  # each of them is something or null
        (something,) = (kind for kind in plain.pop("anyOf") if kind != {"type": "null"})
        plain |= something | {"type": [something["type"], "null"]}
    return plain
