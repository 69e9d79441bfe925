"""Odd names, numbers and bodies at every route, with either engine behind it: refused, never a defect."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from callgate.features.web.application import OPERATIONS
from tests.features.fleet.servers.clusters import Cluster
from tests.features.web.instances import Client

both = pytest.mark.parametrize("cluster", ["sqlite", "postgres"], indirect=True)
NAMES = ["a\0b", "\0", "%", "..", "a/b", "\u2028", "é" * 300, "x" * 5_000, "'; drop table x; --", "-1", "null"]
NUMBERS = [0, -1, 1, 2**31, 2**32, 9_007_199_254_740_990, 2**63 - 1, 2**63, 10**30, "", "x", "1.5", "\0"]
TEXTS = ["", "\0", "x\0y", "\ud800", "x" * 5_000, "\u202e", "ZTk5OTk5OTk5OTk5OTk5OTk5OTk5", "e1", "tu_", "-"]
VALUES: list[Any] = [None, True, -1, 2**63, 1e308, "", "\0", "a\0b", [], {}, [[]], [None], {"\0": "\0"}, "x" * 5_000]
ENDS = ("/v1/shutdown", "/v1/stop", "/v1/token", "/v1/drain")


def paths() -> list[tuple[str, str]]:
    """Every route with every odd name in it."""
    found = []
    for operation in OPERATIONS:
        parameters = re.findall(r"\{(\w+)(?::\w+)?\}", operation.path)
        for name in NAMES if parameters else [""]:
            path = re.sub(r"\{(\w+)(?::\w+)?\}", quote(name, safe=""), operation.path)
            if not operation.path.startswith(ENDS):
                found.append((operation.method, path))
    return found


async def ask(client: Client, method: str, target: str, body: bytes | None = None) -> int:
    headers = {"content-type": "application/json"}
    content = body if body is not None else b"{}" if method in ("POST", "PATCH") else None
    async with client.http.stream(method, target, content=content, headers=headers, timeout=30.0) as answer:
        return int(answer.status_code)


@both
async def test_no_route_meets_a_defect(cluster: Cluster) -> None:
    server = cluster.start()
    client = server.client()
    session = await client.session()
    found: dict[str, int] = {}

    async def note(method: str, target: str, body: bytes | None = None) -> None:
        status = await ask(client, method, target, body)
        if status >= 500 and status != 503:
            found[f"{method} {target[:200]} {(body or b'')[:200]!r}"] = status

    for method, path in paths():
        await note(method, path)
    for operation in OPERATIONS:
        if operation.path.startswith(ENDS):
            continue
        path = re.sub(r"\{(\w+)(?::\w+)?\}", session, operation.path)
        fields = getattr(operation.query, "__struct_encode_fields__", ()) if operation.query is not None else ()
        for field, value in itertools.product(fields, [*NUMBERS, *TEXTS]):
            await note(operation.method, f"{path}?{field}={quote(str(value).encode('utf-8', 'surrogatepass'))}")
        fields = getattr(operation.body, "__struct_encode_fields__", ()) if operation.body is not None else ()
        for field, value in itertools.product(fields, VALUES):
            await note(operation.method, path, json.dumps({field: value}).encode())
    assert found == {}


@both
async def test_ids_in_bodies_may_be_anything(cluster: Cluster) -> None:
    client = cluster.start().client()
    for name in ("a\0b", "\0", "x" * 5_000):
        call = {"tool": "show", "arguments": {}, "session": name}
        assert await ask(client, "POST", "/v1/calls", json.dumps(call).encode()) in (400, 404, 422)
        tool = {"tool": name, "arguments": {"what": name}}
        assert await ask(client, "POST", "/v1/calls", json.dumps(tool).encode()) < 500
    empty = await ask(client, "POST", "/access/v1/evaluations", b'{"evaluations": []}')
    assert empty == 400, "nothing is asked"
