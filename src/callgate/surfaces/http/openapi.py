"""The description of the routes for other programs, OpenAPI 3.1, made from their table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from callgate.core.version import __version__
from callgate.surfaces.http.operations import Operation
from callgate.surfaces.http.problems import Failure

_REFERENCE = "#/components/schemas/{name}"
_DESCRIPTIONS = {
    400: "the request cannot be read",
    401: "the token is missing or wrong",
    403: "refused",
    404: "there is no such thing",
    405: "not with this method",
    409: "it stands otherwise",
    413: "too large",
    415: "not application/json",
    422: "a value is not as it should be",
    429: "too much at once",
    500: "a defect, or a tool's host failed",
    503: "not now: stopping, or the store cannot be used",
}
_OBJECT = {"schema": {"type": "object", "maxProperties": 0}}


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    listed = list(operations)
    types = _types(listed)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        for path in operation.paths:
            entry = _operation(operation, path, by_type, components)
            paths.setdefault(path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": "callgate", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _types(operations: list[Operation]) -> list[Any]:
    some: list[Any] = [Failure]
    for each in operations:
        some += [t for t in (each.answer, each.query, each.body, each.declined) if t is not None]
    return list({id(each): each for each in some}.values())


def _operation(
    operation: Operation, path: str, schemas: Mapping[int, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _name(operation, path),
        "parameters": [*_path_parameters(path), *_query(operation, components)],
        "responses": _responses(operation, schemas),
    }
    if operation.method in ("POST", "PATCH"):
        content = _OBJECT if operation.body is None else {"schema": schemas[id(operation.body)]}
        entry["requestBody"] = {"required": True, "content": {"application/json": content}}
    if operation.unlocked:
        entry["security"] = []
    return entry


def _name(operation: Operation, path: str) -> str:
    words = re.findall(r"[a-z]+", path.removeprefix("/v1"))
    return "_".join([operation.method.lower(), *words, *([] if path.startswith("/v1") else ["0"])])


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^[^/]+$"},
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query(operation: Operation, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = components[operation.query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _unlessnull(each)}
        for name, each in schema["properties"].items()
    ]


def _unlessnull(schema: dict[str, Any]) -> dict[str, Any]:
    """A member of a query is there or not; it has no way to be null."""
    some = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    base = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    if not some:
        return base
    return {**base, **some[0]} if len(some) == 1 else {**base, "anyOf": some}


def _responses(operation: Operation, schemas: Mapping[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": schemas[id(operation.answer)]}
    if operation.events:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    found[str(operation.status)] = {"description": "done", **_content(content)}
    failure = {"application/json": {"schema": schemas[id(Failure)]}}
    for status in sorted(_statuses(operation)):
        found[str(status)] = {"description": _DESCRIPTIONS[status], **_content(failure)}
    if operation.declined is not None:
        declined = {"anyOf": [schemas[id(operation.declined)], schemas[id(Failure)]]}
        body = {"application/json": {"schema": declined}}
        found["409"] = {"description": _DESCRIPTIONS[409], **_content(body)}
    return found


def _content(content: dict[str, Any]) -> dict[str, Any]:
    return {"content": content} if content else {}


def _statuses(operation: Operation) -> set[int]:
    any_route = {400, 403, 405, 500, 503} | ({401} if not operation.unlocked else set())
    if operation.method in ("POST", "PATCH"):
        any_route |= {413, 415, 422}
    return any_route | set(operation.errors)
