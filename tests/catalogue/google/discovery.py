"""Google's own description of its services, as google-api-python-client brings it along."""

from __future__ import annotations

import email
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema_rs

from tests.google_server import SCOPE, Exchange

SERVICES = {"gmail": "v1", "drive": "v3", "calendar": "v3", "docs": "v1", "sheets": "v4", "tasks": "v1"}


@cache
def document(service: str) -> dict[str, Any]:
    found = find_spec("googleapiclient")
    assert found is not None and found.origin is not None
    name = f"{service}.{SERVICES[service]}.json"
    text = (Path(found.origin).parent / "discovery_cache" / "documents" / name).read_text()
    return dict(json.loads(text))


def _methods(resource: dict[str, Any]) -> Any:
    yield from resource.get("methods", {}).values()
    for inner in resource.get("resources", {}).values():
        yield from _methods(inner)


def find(exchange: Exchange) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document and the method of a request; there must be one."""
    path = exchange.path.removeprefix("/upload")
    for service in SERVICES:
        described = document(service)
        for method in _methods(described):
            template = "/" + described["servicePath"] + method.get("flatPath", method["path"])
            pattern = re.sub(r"\{\+?\w+\}", "[^/]+?", template.replace(".", r"\."))
            if method["httpMethod"] == exchange.method and re.fullmatch(pattern, path):
                assert path == exchange.path or method.get("supportsMediaUpload"), exchange.path
                return described, method
    raise AssertionError(f"Google has no {exchange.method} {exchange.path}")


def _strict(schema: Any) -> Any:
    """A schema of a discovery document as JSON Schema that takes no key it does not name."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"#/definitions/{schema['$ref']}"}
    if schema.get("type") == "any":
        return {}
    made = {key: schema[key] for key in ("type", "enum", "pattern") if key in schema}
    if "items" in schema:
        made["items"] = _strict(schema["items"])
    if "properties" in schema:
        made["properties"] = {name: _strict(each) for name, each in schema["properties"].items()}
        made["additionalProperties"] = False
    if "additionalProperties" in schema:
        made["additionalProperties"] = _strict(schema["additionalProperties"])
    return made


@cache
def _validator(service: str, name: str) -> Any:
    schemas = next(document(each)["schemas"] for each in SERVICES if document(each)["name"] == service)
    definitions = {each: _strict(schema) for each, schema in schemas.items()}
    return jsonschema_rs.Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": definitions})


def _without_nulls(value: Any) -> Any:
    """In a PATCH, null takes something away; cells of a sheet may be null as well."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _check_query(exchange: Exchange, described: dict[str, Any], method: dict[str, Any]) -> None:
    known = {**described.get("parameters", {}), **method.get("parameters", {})}
    given = [name for name, _ in exchange.query]
    for name, value in exchange.query:
        if name == "uploadType" and exchange.path.startswith("/upload"):
            continue
        assert known.get(name, {}).get("location") == "query", f"{method['id']} has no parameter {name}"
        rule = known[name]
        assert rule.get("repeated") or given.count(name) == 1, name
        assert value in rule.get("enum", [value]), (name, value)
        if rule["type"] == "integer":
            assert int(rule.get("minimum", value)) <= int(value) <= int(rule.get("maximum", value)), (name, value)
        if rule["type"] == "boolean":
            assert value in ("true", "false"), (name, value)
        if rule.get("format") in ("date-time", "google-datetime") or name in ("timeMin", "timeMax"):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value), (name, value)
    needed = {name for name, rule in known.items() if rule.get("required") and rule["location"] == "query"}
    assert needed <= set(given), (method["id"], needed)


def _sent(exchange: Exchange) -> Any:
    """The JSON of a request; of an upload that of the file's description."""
    kind = exchange.headers.get("content-type", "")
    if not exchange.body or (exchange.path.startswith("/upload") and not kind.startswith("multipart/related")):
        return None
    if kind.startswith("multipart/related"):
        whole = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + exchange.body)
        parts = whole.get_payload()
        assert isinstance(parts, list)
        return json.loads(parts[0].get_payload(decode=True))
    assert kind == "application/json", kind
    return json.loads(exchange.body)


def check(exchange: Exchange, scope: str | None = None) -> str:
    """The request and its answer obey Google's description. The name of the method."""
    described, method = find(exchange)
    _check_query(exchange, described, method)
    service = described["name"]
    sent = _sent(exchange)
    if sent is not None:
        assert "request" in method, f"{method['id']} takes no body"
        _validator(service, method["request"]["$ref"]).validate(_without_nulls(sent))
    if exchange.status < 300 and isinstance(exchange.answer, dict):
        _validator(service, method["response"]["$ref"]).validate(exchange.answer)
    if scope is not None:
        assert SCOPE + scope in method["scopes"], (method["id"], scope)
    return str(method["id"])
