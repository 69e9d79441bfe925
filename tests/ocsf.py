"""Checks events against a class of OCSF as its published schema has it: `tests/corpus/ocsf`.

The table there was compiled from the published definitions of the version in its name by the
project's own compiler, and cut down to names, types, requirements, enumerations and constraints of
the class and of the objects that we use. What is not in it may not be sent.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CORPUS = Path(__file__).parent / "corpus" / "ocsf"
_TEXTS = {"string_t", "hostname_t", "url_t", "username_t", "resource_uid_t", "uuid_t", "email_t", "file_hash_t"}
_NUMBERS = {"integer_t", "long_t", "timestamp_t", "port_t"}


def table(version: str) -> dict[str, Any]:
    return dict(json.loads((_CORPUS / f"api_activity-{version}.json").read_text()))


def problems(event: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """What is wrong with an event; nothing where it is valid."""
    profiles = set(event.get("metadata", {}).get("profiles", ()))
    found = list(_object(event, schema, schema, profiles, "event"))
    if event.get("class_uid") != schema["uid"]:
        found.append("class_uid is another")
    if event.get("type_uid") != event.get("class_uid", 0) * 100 + event.get("activity_id", 0):
        found.append("type_uid does not follow from class and activity")
    if event.get("metadata", {}).get("version") != schema["ocsf"]:
        found.append("metadata.version is another")
    return found


def _object(
    value: Any, kind: Mapping[str, Any], schema: Mapping[str, Any], profiles: set[str], at: str
) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} is no object"
        return
    attributes = kind["attributes"]
    for name, attribute in attributes.items():
        applies = attribute.get("profile") is None or attribute["profile"] in profiles
        if attribute["requirement"] == "required" and applies and name not in value:
            yield f"{at}.{name} is missing"
    for name, each in value.items():
        attribute = attributes.get(name)
        if attribute is None:
            yield f"{at}.{name} is unknown"
        elif attribute.get("profile") is not None and attribute["profile"] not in profiles:
            yield f"{at}.{name} needs the profile {attribute['profile']}"
        else:
            yield from _attribute(each, attribute, schema, profiles, f"{at}.{name}")
    for rule, names in kind.get("constraints", {}).items():
        count = sum(name in value for name in names)
        if count == 0 or (rule == "just_one" and count > 1):
            yield f"{at} needs {rule} of {names}"


def _attribute(
    value: Any, attribute: Mapping[str, Any], schema: Mapping[str, Any], profiles: set[str], at: str
) -> Iterator[str]:
    if attribute.get("array"):
        if not isinstance(value, list):
            yield f"{at} is no list"
            return
        plain = {key: each for key, each in attribute.items() if key != "array"}
        for number, each in enumerate(value):
            yield from _attribute(each, plain, schema, profiles, f"{at}[{number}]")
        return
    if "enum" in attribute and str(value) not in attribute["enum"]:
        yield f"{at}: {value!r} is not one of {attribute['enum']}"
    kind = attribute["type"]
    if kind in _TEXTS:
        good = isinstance(value, str)
    elif kind in _NUMBERS:
        good = isinstance(value, int) and not isinstance(value, bool)
    elif kind == "boolean_t":
        good = isinstance(value, bool)
    elif kind == "ip_t":
        good = bool(ipaddress.ip_address(value))
    elif kind in ("json_t", "object"):
        good = isinstance(value, dict) or kind == "json_t"
    else:
        yield from _object(value, schema["objects"][kind], schema, profiles, at)
        return
    if not good:
        yield f"{at}: {value!r} is no {kind}"
