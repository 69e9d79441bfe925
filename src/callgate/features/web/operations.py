"""Operations: parse a request, run its function, answer; and their OpenAPI 3.1 description.

    request -> path, query and body as types, or 400, 413, 415, 422 -> `Peers.answer` -> JSON

A route declares its input and output types (`contexts.Operation`), and its function gets only
parsed values. The router and the description are built from the same declarations.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Client
from callgate.core.stored import LOCAL
from callgate.core.tasks import start_task
from callgate.core.version import __version__
from callgate.features.web.contexts import Context, Operation, ParsedRequest
from callgate.features.web.guard import VISITOR, target_of
from callgate.features.web.responses import (
    JSON,
    Failure,
    HttpResponse,
    Problem,
    Streamed,
    bad_request,
    carried_refused,
    draining,
    invalid,
    json_response,
    not_found,
    problem_of,
    problem_response,
    respond,
    stopping,
    stream,
)
from callgate.protocol import strict_json
from callgate.protocol.carried_requests import Carried
from callgate.redaction.texts import redact

_LONGEST_NAME = 80
DASHBOARD = "dashboard"
"""The client name of logged-in users of the dashboard."""
MAX_BODY = 8 * 1024 * 1024


async def read_request(operation: Operation, scope: Scope, receive: Receive) -> ParsedRequest:
    """Parse a request. Raises `Problem`."""
    if any(map(_is_unstorable, scope.get("path_params", {}).values())):
        raise not_found("name")
    query = _query(operation, scope["query_string"])
    raw = b""
    if operation.method in ("POST", "PATCH"):
        _ensure_json(scope)
        raw = await _read_body(scope, receive)
    visitor = scope.get(VISITOR)
    browser = visitor is not None and visitor.browser
    carried = None if visitor is None else visitor.carried
    if carried is not None:
        _ensure_carriable(operation, carried, raw)
    return ParsedRequest(
        path=scope.get("path_params", {}),
        query=query,
        body=_body(operation, raw),
        accepts=_header(scope, b"accept").decode("latin-1"),
        disconnected=lambda: _disconnected(receive),
        client=_client(scope, browser) if carried is None else carried.client,
        browser=browser,
        target=target_of(scope),
        raw=raw,
        carried=carried is not None,
        principal=LOCAL if carried is None else carried.principal,
        traceparent=_header(scope, b"traceparent").decode("latin-1"),
        tracestate=_header(scope, b"tracestate").decode("latin-1"),
        request_id=_header(scope, b"x-request-id").decode("latin-1"),
    )


def _is_unstorable(name: str) -> bool:
    """Whether a name cannot be an id: it has a NUL character or a lone surrogate."""
    return "\0" in name or any("\ud800" <= each <= "\udfff" for each in name)


def _ensure_carriable(operation: Operation, carried: Carried, raw: bytes) -> None:
    if operation.bound_to is None and not operation.for_servers:
        raise carried_refused("Servers do not forward this request.")
    if not carried.covers(raw):
        raise carried_refused("Its signature is for another body.")


def _client(scope: Scope, browser: bool) -> Client:
    peer = scope.get("client")
    name = redact(_header(scope, b"user-agent").decode("latin-1")[:_LONGEST_NAME])
    address = f"{peer[0]}:{peer[1]}" if peer else None
    if browser:
        return Client(address=address, program=DASHBOARD)
    return Client(address=address, name=name or None)


def _query(operation: Operation, raw: bytes) -> Any:
    try:
        fields = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=100,
        )
    except ValueError:
        raise bad_request("The query string is malformed.") from None
    given = dict(fields)
    if len(given) < len(fields):
        raise bad_request("The query has a parameter twice.")
    if operation.query is None:
        if given:
            raise bad_request("This path has no query parameters.")
        return None
    try:
        return msgspec.convert(given, operation.query, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"The query is invalid: {error}") from None


def _ensure_json(scope: Scope) -> None:
    kind, _, more = _header(scope, b"content-type").partition(b";")
    charset = more.strip().lower().replace(b'"', b"")
    if kind.strip().lower() != JSON or charset not in (b"", b"charset=utf-8"):
        message = "The content type must be application/json."
        raise Problem(415, ToolErrorClass.PROTOCOL_ERROR, message, "content_type")


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    length = _header(scope, b"content-length")
    if length.isdigit() and int(length[:19]) > MAX_BODY:
        raise _too_large()
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("The connection ended before the whole body arrived.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY:
            raise _too_large()
        if not message.get("more_body", False):
            return b"".join(chunks)


def _body(operation: Operation, raw: bytes) -> Any:
    if operation.method not in ("POST", "PATCH"):
        return None
    try:
        given = strict_json.loads(raw, max_bytes=MAX_BODY) if raw else {}
    except strict_json.StrictJsonError as error:
        raise bad_request(f"The body is not valid JSON: {error}", error.refusal) from None
    if operation.body is None:
        if given != {}:
            raise invalid("This path has no parameters in the body: send {}.")
        return None
    try:
        return msgspec.convert(given, operation.body)
    except msgspec.ValidationError as error:
        sentence = f"The body is invalid: {error}"
        problem = bad_request if operation.malformed == 400 else invalid
        raise problem(sentence) from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header. Several values are joined, so that none is ignored."""
    return b", ".join(value for key, value in scope["headers"] if key == name)


def _too_large() -> Problem:
    message = f"The body exceeds {MAX_BODY} bytes."
    return Problem(413, ToolErrorClass.PROTOCOL_ERROR, message, "size")


def wrong_method(known: Iterable[str]) -> Problem:
    allowed = ", ".join(sorted(known))
    return Problem(
        405,
        ToolErrorClass.PROTOCOL_ERROR,
        f"This path supports only {allowed}.",
        "method",
        headers=[(b"allow", allowed.encode())],
    )


def defect() -> Problem:
    message = "An internal error occurred; see the log of the instance."
    return Problem(500, ToolErrorClass.EXECUTION_ERROR, message, "internal")


_log = logging.getLogger("callgate.http")


class Endpoint:
    """The operations of one path, by method."""

    def __init__(self, context: Context, operations: Iterable[Operation]) -> None:
        self._context = context
        self._by_method: dict[str, Operation] = {each.method: each for each in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._by_method.get(scope["method"])
        try:
            if operation is None:
                raise wrong_method(self._by_method)
            if operation.begins_work and self._context.draining.has_begun:
                raise draining()
            request = await read_request(operation, scope, receive)
            answer = await self._context.peers.answer(operation, request)
        except asyncio.CancelledError:  # its work or this task was cancelled: nothing follows
            await respond(problem_response(stopping()), scope, receive, send)
            return
        except Exception as error:  # known errors become an answer; a defect is only logged
            problem = problem_of(error)
            if problem is None:
                _log.exception("a request failed: %s %s", scope["method"], scope["path"])
                problem = defect()
            problem.__traceback__ = problem.__context__ = None  # its frames contain the request
            await respond(problem_response(problem), scope, receive, send)
            return
        if isinstance(answer, Streamed):
            await stream(answer, send)
            return
        if not isinstance(answer, HttpResponse):
            answer = json_response(operation.status, answer)
        await respond(answer, scope, receive, send)


T = TypeVar("T")


async def while_connected(request: ParsedRequest, work: Awaitable[T]) -> T:
    """Await `work`, and cancel it if the client disconnects."""
    task = asyncio.current_task()
    assert task is not None
    left = False

    def on_disconnect(watching: asyncio.Task[None]) -> None:
        nonlocal left
        if not watching.cancelled():
            left = True
            task.cancel()

    async def watch() -> None:
        await request.disconnected()

    watching = start_task(watch())
    watching.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if left and task.uncancel() == 0:
            raise bad_request("The client has disconnected.", "gone") from None
        raise
    finally:
        watching.remove_done_callback(on_disconnect)
        watching.cancel()


_REFERENCE = "#/components/schemas/{name}"
_DESCRIPTIONS = {
    400: "the request is malformed",
    401: "the token is missing or wrong",
    403: "refused",
    404: "not found",
    405: "the path does not support this method",
    409: "conflict with the present state",
    413: "too large",
    415: "not application/json",
    422: "a value is invalid",
    429: "too many requests",
    500: "an internal error, or a tool's host failed",
    503: "unavailable: the instance is stopping, or the store is unusable",
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
        "parameters": [*_path_parameters(path), *_query_parameters(operation, components)],
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


def _query_parameters(operation: Operation, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = components[operation.query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _unlessnull(each)}
        for name, each in schema["properties"].items()
    ]


def _unlessnull(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a schema, because a query parameter cannot be null."""
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
