"""What the database shows to a role that may only read it: no secret of the servers, in no spelling."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from callgate.config.sealing import SealingKey, unseal
from callgate.config.secret_entries import KIND
from callgate.config.secret_opening import ACCESS, AUDIT, SERVERS
from callgate.core.ops import PutEntry
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.schema import FIRST
from callgate.features.fleet.postgres.store import PostgresStore
from tests.features.fleet.servers.clusters import KEY_VARIABLE, SECRETS_KEY, Cluster, ServerProcess

LIMIT_S = 60.0
MODEL_KEY = "sk-never-in-the-database-0123456789"
NEW_KEY = "another key that is long enough, 0123456789"
TOKENS = {"access_token": "mcp-access-0123456789abcdef", "refresh_token": "mcp-refresh-fedcba9876543210"}

pytestmark = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)


def callgate(
    cluster: Cluster, *words: str, server: str = "a", input: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command in the home of a server."""
    home = cluster.home_of(server)
    return subprocess.run(
        [sys.executable, "-m", "callgate", *words],
        env={**os.environ, KEY_VARIABLE: SECRETS_KEY, "CALLGATE_HOME": str(home), **environment},
        input=input,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=cluster.ws,
    )


def done(cluster: Cluster, *words: str, input: str = "", **environment: str) -> str:
    ran = callgate(cluster, *words, input=input, **environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def location(cluster: Cluster) -> PostgresLocation:
    assert cluster.location is not None
    return cluster.location


async def dump(cluster: Cluster) -> str:
    """All rows of all tables, as a role sees them that may do nothing but read."""
    place = location(cluster)
    schema, role = sql.Identifier(place.schema), sql.Identifier(f"reader_{place.schema}")
    shown = ""
    async with await psycopg.AsyncConnection.connect(place.url, autocommit=True) as db:
        await db.execute(sql.SQL("create role {}").format(role))
        try:
            await db.execute(sql.SQL("grant usage on schema {} to {}").format(schema, role))
            await db.execute(sql.SQL("grant select on all tables in schema {} to {}").format(schema, role))
            await db.execute(sql.SQL("set role {}").format(role))
            found = await db.execute("select tablename from pg_tables where schemaname = %s", (place.schema,))
            names = [name for (name,) in await found.fetchall()]
            assert {"entries", "sessions", "events", "calls"} <= {*names}
            for name in names:
                rows = await db.execute(sql.SQL("select t::text from {}.{} t").format(schema, sql.Identifier(name)))
                shown += "\n".join(f"{name} {row}" for (row,) in await rows.fetchall()) + "\n"
        finally:
            await db.execute("reset role")
            await db.execute(sql.SQL("drop owned by {}").format(role))
            await db.execute(sql.SQL("drop role {}").format(role))
    return shown


def spellings(secret: bytes) -> Iterator[str]:
    """How bytes may be written, with everything that may stand around them in a longer text."""
    yield secret.hex()
    yield secret.hex().upper()
    yield secret.decode("latin-1")
    yield json.dumps(secret.decode("latin-1"))[1:-1]
    yield secret[::-1].hex()
    for shift in range(3):  # within a longer text that is encoded
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(bytes(shift) + secret).decode().rstrip("=")
            yield text[4 if shift else 0 : -2]
    yield base64.b32encode(secret).decode().rstrip("=")
    yield base64.b85encode(secret).decode()


def assert_hidden(shown: str, secrets: dict[str, bytes]) -> None:
    lower = shown.lower()
    for name, secret in secrets.items():
        for spelling in spellings(secret):
            assert spelling not in shown and spelling.lower() not in lower, f"{name} as {spelling[:40]}"


async def keys_of(cluster: Cluster) -> dict[str, bytes]:
    async with await PostgresStore.open(location(cluster)) as store:
        entries = {each.name: each for each in await store.entries(KIND)}
    ring = [SealingKey(SECRETS_KEY), SealingKey(NEW_KEY)]
    return {
        name: bytes.fromhex(json.loads(unseal(name, json.loads(entries[name].value), ring))["key"])
        for name in (ACCESS, SERVERS, AUDIT)
    }


async def used(cluster: Cluster, a: ServerProcess, b: ServerProcess) -> dict[str, bytes]:
    """Everything secret that two servers have, after each of them was used."""
    session = await a.client().session(mode="write")
    assert (await b.client().call("put", session, what="x"))["ok"], "carried, and signed"
    link = (await a.client().post("/v1/login")).json()["url"]
    code = urllib.parse.parse_qs(urllib.parse.urlsplit(link).query)["code"][0]
    opened = await b.client(None).http.get(f"/login?code={code}")
    cookie = opened.headers["set-cookie"].partition(";")[0].partition("=")[2]
    login = cluster.home_of("a") / "mcp" / "web.tokens"
    login.parent.mkdir(mode=0o700, exist_ok=True)
    login.write_text(json.dumps(TOKENS))
    login.chmod(0o600)
    worker = done(cluster, "workers", "token", "create", "--pool", "build").strip()
    done(cluster, "keys", "encrypt")  # puts what is in the files of the home into the store
    done(cluster, "keys", "set", "anthropic", input=MODEL_KEY)
    secrets = await keys_of(cluster)
    given = {
        "own token": a.token,
        "token": await cluster.shared_token(a, b),
        "worker": worker,
        "code": code,
        "cookie": cookie,
        "model": MODEL_KEY,
    }
    given |= {"key": SECRETS_KEY, **TOKENS}
    return secrets | {name: text.encode() for name, text in given.items()}


async def test_a_role_that_may_read_the_database_finds_no_secret(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    secrets = await used(cluster, a, b)
    home = cluster.home_of("a")
    secrets["audit file"] = bytes.fromhex((home / "audit.key").read_text().split()[0])
    assert secrets["audit file"] == secrets[AUDIT], "the logs of all homes hash with one key"
    shown = await dump(cluster)
    assert "callgate-secret:1:" in shown and "own_" in shown
    assert_hidden(shown, secrets)
    with pytest.raises(AssertionError):
        assert_hidden(shown + secrets[ACCESS].hex(), secrets)


async def test_every_server_finds_the_keys_and_the_ciphertext_is_bound_to_its_row(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    await used(cluster, a, b)
    await cluster.shared_token(a, b)
    async with await PostgresStore.open(location(cluster)) as store:
        entries = {each.name: each for each in await store.entries(KIND)}
        await store.commit(PutEntry(kind=KIND, name=SERVERS, value=entries[ACCESS].value))
    ran = callgate(cluster, "keys", "status")
    assert ran.returncode == 1 and "damaged" in ran.stderr, "a key in the place of another is refused"


async def test_a_shared_store_without_a_key_is_refused_and_says_how_to_make_one(cluster: Cluster) -> None:
    serve = ("serve", "--no-http", "--workspace", str(cluster.ws))
    unset = callgate(cluster, *serve, **{KEY_VARIABLE: ""})
    called = callgate(cluster, "call", "list_dir", "path=.", **{KEY_VARIABLE: ""})
    cluster.secrets = ""
    unnamed = callgate(cluster, *serve)
    for ran in (unnamed, unset, called):
        assert ran.returncode == 2 and "Traceback" not in ran.stderr, ran.stderr
    assert "openssl rand" in unnamed.stderr and "key_env" in unnamed.stderr
    assert KEY_VARIABLE in unset.stderr and KEY_VARIABLE in called.stderr


async def test_a_server_with_another_key_does_not_start(cluster: Cluster) -> None:
    cluster.start("a")
    serve = ("serve", "--no-http", "--workspace", str(cluster.ws))
    ran = await asyncio.to_thread(callgate, cluster, *serve, server="b", **{KEY_VARIABLE: NEW_KEY})
    assert ran.returncode != 0 and SealingKey(SECRETS_KEY).id in ran.stderr, ran.stderr


async def test_keys_that_were_readable_are_replaced_when_the_tables_are_upgraded(cluster: Cluster) -> None:
    place = location(cluster)
    exposed = {"access-key": bytes(range(32)), "servers-key": bytes(range(32, 64)), "audit": bytes(range(64, 96))}
    async with await psycopg.AsyncConnection.connect(place.url, autocommit=True) as db:
        await db.execute(f'create schema "{place.schema}"'.encode())
        await db.execute(FIRST.replace("cg.", f'"{place.schema}".').encode())
        await db.execute(f'create table "{place.schema}".format (version int, oldest int)'.encode())
        await db.execute(f'insert into "{place.schema}".format values (1, 1)'.encode())
        for name, key in exposed.items():
            body = json.dumps({"name": name, "value": key.hex()})
            await db.execute(f'insert into "{place.schema}".secrets values (%s, %s)'.encode(), (name, body))
    a, b = cluster.start(), cluster.start()
    secrets = await used(cluster, a, b)
    assert not {*exposed.values()} & {*secrets.values()}, "what was exposed is not used any more"
    shown = await dump(cluster)
    assert_hidden(shown, secrets | exposed)
    assert "were stored in plain text and are replaced" in cluster.log.read_text()


async def test_the_key_is_rotated_while_servers_run(cluster: Cluster) -> None:
    """Each server gets both keys before anything is encrypted with the new one."""
    a, b = cluster.start(), cluster.start()
    before = await used(cluster, a, b)
    new = {"CALLGATE_SECRETS_NEW": NEW_KEY}
    done(cluster, "keys", "rotate", "--new-key-env", "CALLGATE_SECRETS_NEW", **new)
    session = await a.client().session(mode="write")
    assert (await b.client().call("put", session, what="y"))["ok"], "running servers have the keys"
    assert await keys_of(cluster) == {name: before[name] for name in (ACCESS, SERVERS, AUDIT)}
    b.signal(signal.SIGTERM)
    await asyncio.to_thread(b.process.wait, LIMIT_S)
    cluster.secrets = f'[secrets]\nkey_env = "CALLGATE_SECRETS_NEW"\nprevious_key_env = "{KEY_VARIABLE}"\n'
    again = cluster.start("b", **new)
    await cluster.shared_token(a, again)
    assert (await again.client().call("put", session, what="z"))["ok"]
    cluster.secrets = f'[secrets]\nkey_env = "{KEY_VARIABLE}"\n'
    old = callgate(cluster, "keys", "status")
    assert old.returncode == 1 and SealingKey(NEW_KEY).id in old.stderr, "which key is missing"
