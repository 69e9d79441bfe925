"""Worker tokens: who may connect as a worker, and to which pools. A token opens nothing else.

A token is shown once. The store has its hash, so any server that shares the store accepts it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

import msgspec

from callgate.core.ops import DropEntry, PutEntry
from callgate.core.sessions import is_pool_name
from callgate.core.stores import Store

KIND = "worker_token"
PREFIX = "cgw_"


class WorkerToken(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str
    pools: tuple[str, ...]
    created_at: float
    worker: str = ""
    """The only worker that may use it; empty: any of its pools."""

    def is_for(self, pool: str, worker: str) -> bool:
        return pool in self.pools and self.worker in ("", worker)


class TokenError(ValueError):
    """A token that cannot be made; `str` says why."""


async def create_token(
    store: Store, name: str, pools: tuple[str, ...], worker: str | None = None
) -> str:
    """Make a token, which nobody can look up again; `worker` binds it to a worker of that name.
    Raises `TokenError`."""
    for each in (name, *pools, *(() if worker is None else (worker,))):
        if not is_pool_name(each):
            raise TokenError(
                f"{each!r} is no name: letters, digits and . _ - are, at most 64, the first a"
                " letter or digit"
            )
    if not pools:
        raise TokenError("a worker token is bound to at least one pool")
    token = PREFIX + secrets.token_urlsafe(32)
    value = WorkerToken(
        name=name,
        sha256=_hash(token),
        pools=pools,
        created_at=time.time(),
        worker=worker or "",
    )
    put = PutEntry(kind=KIND, name=name, value=msgspec.json.encode(value).decode(), expected=0)
    (receipt,) = await store.commit(put)
    if not receipt.applied:
        raise TokenError(f"there is a worker token {name!r} already: revoke it, or choose a name")
    return token


async def list_tokens(store: Store) -> list[WorkerToken]:
    entries = await store.entries(KIND)
    return [msgspec.json.decode(each.value, type=WorkerToken) for each in entries]


async def revoke_token(store: Store, name: str) -> bool:
    """Whether there was one."""
    known = any(each.name == name for each in await store.entries(KIND))
    await store.commit(DropEntry(kind=KIND, name=name))
    return known


async def find_token(store: Store, token: str) -> WorkerToken | None:
    """The token that somebody shows; None where there is none such."""
    given = _hash(token)
    for each in await list_tokens(store):
        if hmac.compare_digest(given, each.sha256):
            return each
    return None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
