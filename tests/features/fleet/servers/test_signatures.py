"""Nobody but a server of the same store makes another one believe who asks."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import msgspec
import pytest

from callgate.core.sessions import Client
from callgate.protocol.carried_requests import (
    HEADER,
    VALID_S,
    BadSignature,
    Carried,
    Verifier,
    hash_of,
    new_nonce,
    read,
    sign,
)
from tests.features.fleet.servers.clusters import Cluster, ServerProcess

SECRET = bytes(range(32))
NOW = 1_000_000.0


def carried(**changes: Any) -> Carried:
    given = {
        "to": "own_a",
        "sender": "own_b",
        "method": "POST",
        "target": "/v1/calls?x=1",
        "body_sha256": hash_of(b"{}"),
        "at": NOW,
        "nonce": new_nonce(),
        "client": Client(name="caller", address="10.0.0.9:1"),
        "browser": True,
    }
    return Carried(**{**given, **changes})


def test_what_was_signed_is_read_whole() -> None:
    one = carried()
    accepted = Verifier("own_a", SECRET).accept(sign(one, SECRET), "POST", "/v1/calls?x=1", NOW)
    assert accepted == one
    assert accepted.covers(b"{}") and not accepted.covers(b"{ }")


@pytest.mark.parametrize(
    ("changes", "method", "target", "now"),
    [
        ({"to": "own_c"}, "POST", "/v1/calls?x=1", NOW),
        ({}, "PATCH", "/v1/calls?x=1", NOW),
        ({}, "POST", "/v1/calls?x=2", NOW),
        ({}, "POST", "/v1/calls", NOW),
        ({}, "POST", "/v1/calls?x=1", NOW + VALID_S + 1),
        ({}, "POST", "/v1/calls?x=1", NOW - VALID_S - 1),
    ],
)
def test_a_signature_is_good_for_one_request_to_one_server_for_a_while(
    changes: dict[str, Any], method: str, target: str, now: float
) -> None:
    with pytest.raises(BadSignature):
        Verifier("own_a", SECRET).accept(sign(carried(**changes), SECRET), method, target, now)


def test_a_request_is_accepted_once_for_as_long_as_it_would_be_good() -> None:
    verifier, header = Verifier("own_a", SECRET), sign(carried(at=NOW + VALID_S), SECRET)
    verifier.accept(header, "POST", "/v1/calls?x=1", NOW)
    for later in (NOW, NOW + VALID_S, NOW + 2 * VALID_S - 0.1):
        with pytest.raises(BadSignature):
            verifier.accept(header, "POST", "/v1/calls?x=1", later)
    for number in range(100):
        verifier.accept(sign(carried(at=NOW + 1_000), SECRET), "POST", "/v1/calls?x=1", NOW + 1_000 + number / 1000)
    assert len(verifier._seen) == 100, "what cannot be used any more is forgotten"


@pytest.mark.parametrize("header", ["", ".", "a.b", "e30.", "!!!.!!!", "é.é", "x" * 100_000, "e30.e30"])
def test_what_no_server_signed_cannot_be_read(header: str) -> None:
    with pytest.raises(BadSignature):
        read(header, SECRET)


def test_another_key_or_another_word_spoils_a_signature() -> None:
    header = sign(carried(), SECRET)
    with pytest.raises(BadSignature):
        read(header, bytes(reversed(SECRET)))
    payload, _, signature = header.partition(".")
    other = sign(carried(client=Client(name="somebody else")), bytes(32)).partition(".")[0]
    with pytest.raises(BadSignature):
        read(f"{other}.{signature}", SECRET)
    assert read(f"{payload}.{signature}", SECRET).client.name == "caller"


# Against a server.


async def send(server: ServerProcess, header: str, body: bytes, target: str = "/v1/calls") -> httpx2.Response:
    headers = {HEADER: header, "content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=server.url) as client:
        return await client.post(target, content=body, headers=headers)


async def test_a_server_refuses_what_is_forged_altered_replayed_or_stale(standing: Cluster) -> None:
    a = standing.start()
    me = (await a.client().get("/v1/server"))["id"]
    body = msgspec.json.encode({"tool": "show", "arguments": {"what": "x"}})
    unknown = await send(a, sign(carried(to=me), bytes(32)), body)  # so that there is a key
    assert unknown.status_code == 401
    key = await standing.servers_key()

    def header(secret: bytes = key, **changes: Any) -> str:
        fresh = {"to": me, "target": "/v1/calls", "body_sha256": hash_of(body), "at": time.time()}
        return sign(carried(**{**fresh, **changes}), secret)

    good = header()
    answer = await send(a, good, body)
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    assert (await a.client().get(f"/v1/calls/{answer.json()['call_id']}"))["client"] == "caller"
    for bad, sent in (
        (good, body),  # again
        (header(bytes(32)), body),  # by nobody we know
        (header(), body.replace(b'"x"', b'"y"')),  # another body
        (header(to="own_other"), body),
        (header(at=time.time() - 2 * VALID_S), body),
        (header(target="/v1/login"), body),
        ("nonsense", body),
    ):
        refused = await send(a, bad, sent)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (401, "carried_refused"), bad
    unbound = header(target="/v1/login", body_sha256=hash_of(b"{}"))
    refused = await send(a, unbound, b"{}", "/v1/login")
    assert refused.status_code == 401, "only what is carried may be asked for so"
    both = await a.client().http.post(
        "/v1/calls", content=body, headers={HEADER: "nonsense", "content-type": "application/json"}
    )
    assert both.status_code == 401, "a token beside a bad signature does not help"


async def test_a_carried_request_is_never_carried_on(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session()
    await b.client().call("show", session)  # so that there is a key
    other = (await b.client().get("/v1/server"))["id"]
    key = await standing.servers_key()
    body = msgspec.json.encode({"tool": "show", "arguments": {}, "session": session})
    one = carried(to=other, target="/v1/calls", body_sha256=hash_of(body), at=time.time())
    answer = await send(b, sign(one, key), body)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (421, "moved")
    assert answer.headers[HEADER] == "moved"
