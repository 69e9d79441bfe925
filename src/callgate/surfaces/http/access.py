"""Who may come in: the token of the instance, and what is given out in its place.

    token          in a private file; all that the user may do, until it is rotated
    proof          shows a client that the listener has the token, before the client sends it
    login code     once, within a minute; becomes a cookie
    cookie         what the token is, for a browser that shows where a request comes from
    attach token   once, within a minute; opens the stream of one session and nothing else

All of them are random and compared without regard to how much of them is right. What is given
out is kept here as a hash, in memory: a restart or a rotation voids it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from callgate.core.directories import write_private
from callgate.protocol.carried_requests import Carried

SHORT_S = 60.0
"""How long a login code and an attach token are good for."""
_MOST = 1_000
"""Of each kind; the oldest goes first."""

_PRIVATE_NAME = re.compile(r"cg-[0-9a-f]{16}\.localhost")

V = TypeVar("V")


class Visitor(NamedTuple):
    """Who was let in."""

    session: str | None = None
    """The one session that it may see; None: the user, who may all."""
    browser: bool = False
    """It came with a cookie: a page of ours asks."""
    carried: Carried | None = None
    """Another server asks, for a visitor of its own."""


USER = Visitor()
BROWSER = Visitor(browser=True)


class Access:
    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`path` is where the token is written, for programs of the same user."""
        self.path = path
        self._clock = clock
        self._token = secrets.token_urlsafe(32)
        self._codes: dict[bytes, float] = {}
        """By hash: until when."""
        self._cookies: dict[bytes, None] = {}
        self._attaching: dict[bytes, tuple[str, float]] = {}
        """By hash: to which session, until when."""
        self._rotated: list[Callable[[], None]] = []
        write_private(path, self._token + "\n")

    @property
    def token(self) -> str:
        """The one that is good now."""
        return self._token

    def close(self) -> None:
        """Take the token back. Idempotent."""
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def proof(self, nonce: str, url: str) -> str:
        """Show that this process knows the token, without telling it. `url` is its own address: a
        process at another address cannot forward the question and pass off the answer."""
        return proof_of(self.token, nonce, url)

    @property
    def is_ready(self) -> bool:
        """Whether it is known who may come in."""
        return True

    def is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self._token.encode())

    def is_cookie(self, value: str) -> bool:
        return _hash(value) in self._cookies

    def new_code(self) -> str:
        code = secrets.token_urlsafe(32)
        _keep(self._codes, _hash(code), self._clock() + SHORT_S)
        return code

    async def log_in(self, code: str) -> str | None:
        """The cookie for a code, which is used up; None where it is not good."""
        until = self._codes.pop(_hash(code), None)
        if until is None or until < self._clock():
            return None
        cookie = secrets.token_urlsafe(32)
        _keep(self._cookies, _hash(cookie), None)
        return cookie

    def new_attach(self, session: str) -> str:
        token = secrets.token_urlsafe(32)
        _keep(self._attaching, _hash(token), (session, self._clock() + SHORT_S))
        return token

    async def attach(self, token: str) -> Visitor | None:
        """Who comes with an attach token, which is used up; None where it is not good."""
        session, until = self._attaching.pop(_hash(token), ("", 0.0))
        return Visitor(session) if session and self._clock() <= until else None

    async def rotate(self) -> None:
        """A new token; whatever was good before is not from now on."""
        self.void(secrets.token_urlsafe(32))

    def void(self, token: str) -> None:
        """Let nobody in any more but with a new token."""
        write_private(self.path, token + "\n")
        self._token = token
        self._codes.clear()
        self._cookies.clear()
        self._attaching.clear()
        for callback in list(self._rotated):
            callback()

    def on_rotate(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function when everything is void; returns the function that ends it."""
        self._rotated.append(callback)
        return lambda: self._rotated.remove(callback) if callback in self._rotated else None


def proof_of(token: str, nonce: str, url: str) -> str:
    """The answer to `nonce` that only a process with the token can give."""
    message = f"callgate listener proof\n{url}\n{nonce}"
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()


def token_path(home: str, pid: int) -> str:
    return os.path.join(home, "run", f"{pid}.token")


def private_name(home: str) -> str:
    """The name under which browsers know the instances of a home; the same after a restart."""
    path = os.path.join(home, "run", "browser-name")
    try:
        with open(path, encoding="ascii") as file:
            known = file.read(100).strip()
        if _PRIVATE_NAME.fullmatch(known):
            return known
    except (OSError, UnicodeError):
        pass
    name = f"cg-{secrets.token_hex(8)}.localhost"
    write_private(path, name + "\n")
    return name


def reap_tokens(home: str) -> None:
    """Remove the tokens of processes that are gone; they open nothing any more."""
    try:
        names = os.listdir(os.path.join(home, "run"))
    except OSError:
        return
    for name in names:
        pid, _, kind = name.partition(".")
        if kind == "token" and pid.isdecimal() and not _is_there(int(pid)):
            try:
                os.unlink(token_path(home, int(pid)))
            except OSError:
                pass


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _keep(entries: dict[bytes, V], key: bytes, value: V) -> None:
    while len(entries) >= _MOST:
        del entries[next(iter(entries))]
    entries[key] = value
