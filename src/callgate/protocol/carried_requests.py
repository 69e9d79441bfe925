"""A request that one server forwards to another: its client, and a signature over everything.

    header = base64url(JSON of `Carried`) "." base64url(HMAC-SHA256 with the key of all servers)

The signature covers the recipient, method, target, hash of the body, time, nonce and the client
on whose behalf it is sent. The servers share the key through the store, encrypted. A request that
is altered, meant for another server, too old, or seen before is refused (`BadSignature`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec

from callgate.core.sessions import Client
from callgate.core.stored import LOCAL

HEADER = "callgate-carried"
MOVED = b"moved"
REFUSED = b"refused"
"""Values of the header in an answer: the recipient is not the owner, or refuses the signature."""
VALID_S = 30.0
"""Maximum age of a forwarded request, and maximum difference of two servers' clocks."""
_LONGEST = 32_768


class BadSignature(Exception):
    """Invalid signature. `str` has the reason, and is safe to show."""


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    to: str
    """The store's name of the server that has to answer."""
    sender: str
    method: str
    target: str
    """Path and query, as in the request."""
    body_sha256: str
    at: float
    nonce: str
    browser: bool = False
    """Whether a user is logged in to a page of the sender."""
    client: Client = Client()
    """The client of the sender, as the sender identified it."""
    principal: str = LOCAL

    def covers(self, body: bytes) -> bool:
        return hmac.compare_digest(self.body_sha256, hash_of(body))


def new_nonce() -> str:
    return secrets.token_urlsafe(16)


def hash_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def sign(carried: Carried, key: bytes) -> str:
    payload = msgspec.json.encode(carried)
    return f"{_encode(payload)}.{_encode(_mac(payload, key))}"


def read(header: str, key: bytes) -> Carried:
    """Verify the signature. Raises `BadSignature`. Checks neither time, nonce nor recipient."""
    encoded, _, signature = header.partition(".")
    if len(header) > _LONGEST:
        raise BadSignature("It is too long.")
    try:
        payload = _decode(encoded)
        if not hmac.compare_digest(_decode(signature), _mac(payload, key)):
            raise BadSignature("No server of this store made its signature.")
        return msgspec.json.decode(payload, type=Carried)
    except (ValueError, RecursionError):
        raise BadSignature("It cannot be read.") from None


class Verifier:
    """Accepts each carried request for one server once."""

    def __init__(self, owner: str, key: bytes) -> None:
        self._owner = owner
        self._key = key
        self._seen: dict[str, float] = {}
        """Nonces of accepted requests, oldest first, with their expiry times."""

    def accept(self, header: str, method: str, target: str, now: float) -> Carried:
        """Verify a request. Raises `BadSignature`. The caller checks `Carried.covers` after it has
        read the body."""
        carried = read(header, self._key)
        if carried.to != self._owner:
            raise BadSignature("Its recipient is another server.")
        if (carried.method, carried.target) != (method, target):
            raise BadSignature("It was signed for another request.")
        if abs(now - carried.at) > VALID_S:
            raise BadSignature(
                f"It was signed {now - carried.at:+.0f} s ago by the clock of this server, and "
                f"{VALID_S:.0f} s are allowed: set the clocks of the servers right."
            )
        self._forget(now)
        if carried.nonce in self._seen:
            raise BadSignature("It was sent before.")
        self._seen[carried.nonce] = now + 2 * VALID_S
        return carried

    def _forget(self, now: float) -> None:
        while self._seen and (first := next(iter(self._seen))):
            if self._seen[first] > now:
                return
            del self._seen[first]


def _mac(payload: bytes, key: bytes) -> bytes:
    return hmac.digest(key, payload, "sha256")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
