"""Access to the HTTP address: listening names, the token of the instance, and what it grants.

    token          in a private file; all rights of the user, until it is rotated
    proof          proves to a client that the listener has the token, before the client sends it
    login code     one use within a minute; exchanged for a cookie
    cookie         all rights of the token, for a browser that sends its origin
    attach token   one use within a minute; opens the stream of one session and nothing else

All of them are random and compared in constant time. Issued secrets are stored in memory as
hashes, so a restart or a rotation revokes them.

A page of a foreign site can make a browser send requests to this server: by DNS rebinding (a
foreign `Host`), or across origins (a foreign `Origin`). Both headers are checked against a closed
list, on HTTP and on WebSocket.
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
from urllib.parse import urlsplit

from callgate.core.local.disk import write_private
from callgate.protocol.carried_requests import Carried
from callgate.socket.instances import proof_of, token_path
from callgate.socket.listening import Address, BadAddress, is_ip

SHORT_S = 60.0
"""Lifetime of login codes and attach tokens."""
_MOST = 1_000
"""Maximum number of codes, cookies and attach tokens each; the oldest is dropped first."""

_PRIVATE_NAME = re.compile(r"cg-[0-9a-f]{16}\.localhost")

V = TypeVar("V")


class Visitor(NamedTuple):
    """An authenticated client."""

    session: str | None = None
    """The only session that it may see; None: the user, who may see all."""
    browser: bool = False
    """Whether it is a page of callgate in a browser, authenticated by a cookie."""
    carried: Carried | None = None
    """The forwarded request, if the client is another server that acts for its own visitor."""


USER = Visitor()
BROWSER = Visitor(browser=True)


class Access:
    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`path`: the file for the token, which programs of the same user read."""
        self.path = path
        self._clock = clock
        self._token = secrets.token_urlsafe(32)
        self._codes: dict[bytes, float] = {}
        """Expiry times of login codes, by hash."""
        self._cookies: dict[bytes, None] = {}
        self._attaching: dict[bytes, tuple[str, float]] = {}
        """Session and expiry time of attach tokens, by hash."""
        self._rotated: list[Callable[[], None]] = []
        write_private(path, self._token + "\n")

    @property
    def token(self) -> str:
        """The present token."""
        return self._token

    def close(self) -> None:
        """Remove the token file. Idempotent."""
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def proof(self, nonce: str, url: str) -> str:
        """Return a proof that this process knows the token, without revealing it.

        The proof includes the server's own `url`, so that a process at another address cannot
        relay it.
        """
        return proof_of(self.token, nonce, url)

    @property
    def is_ready(self) -> bool:
        """Whether credentials can be checked."""
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
        """Exchange a login code for a cookie; return None if the code is invalid."""
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
        """Consume an attach token and return its visitor; None if the token is invalid."""
        session, until = self._attaching.pop(_hash(token), ("", 0.0))
        return Visitor(session) if session and self._clock() <= until else None

    async def rotate(self) -> None:
        """Replace the token, and revoke all cookies, codes and attach tokens."""
        self.void(secrets.token_urlsafe(32))

    def void(self, token: str) -> None:
        """Adopt a new token, and revoke all cookies, codes and attach tokens."""
        write_private(self.path, token + "\n")
        self._token = token
        self._codes.clear()
        self._cookies.clear()
        self._attaching.clear()
        for callback in list(self._rotated):
            callback()

    def on_rotate(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each revocation; return a function that removes it."""
        self._rotated.append(callback)
        return lambda: self._rotated.remove(callback) if callback in self._rotated else None


def private_name(home: str) -> str:
    """Return the host name of a home's instances for browsers. It survives restarts."""
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
    """Remove the token files of dead processes, whose tokens are useless."""
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


_OWN_NAMES = ("127.0.0.1", "[::1]", "localhost")


def read_advertised(text: str) -> str:
    """Normalize a URL such as `https://gate-1.example:4177`. Raises `BadAddress`."""
    try:
        split_url = urlsplit(text)
        good = split_url.scheme in ("http", "https") and split_url.hostname and split_url.port != 0
    except ValueError:
        good = False
    if (
        not good
        or split_url.username is not None
        or split_url.path not in ("", "/")
        or split_url.query
    ):
        raise BadAddress(
            f"{text!r} is not a URL without a path, such as https://gate-1.example:4177"
        )
    return f"{split_url.scheme}://{split_url.netloc.lower()}"


def read_public(text: str) -> str:
    """Return the origin of a URL such as `https://callgate.example`. Raises `BadAddress`."""
    try:
        url = urlsplit(text.lower())
        usual = {"http": 80, "https": 443}.get(url.scheme)
        port = url.port
    except ValueError:
        usual = port = None
    if usual is None or not url.hostname or "@" in url.netloc or url.path not in ("", "/"):
        raise BadAddress(f"{text!r} is not a URL without a path, such as https://callgate.example")
    if url.query or url.fragment:
        raise BadAddress(f"{text!r} has more than a host and a port")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


class Names(NamedTuple):
    """The names of this server at its bound address."""

    address: Address
    private: str | None = None
    """A secret name for browsers. Cookies are not bound to a port, so a browser would send
    cookies of 127.0.0.1 to every server on this machine that the user visits."""
    advertised: str | None = None
    """The URL of this server for other servers."""
    public: str | None = None
    """The origin of the load balancer before this server, normalized by `read_public`."""

    def is_ours(self, host: str) -> bool:
        """Whether the value of a `Host` header names this server."""
        known = (each.partition("://")[2] for each in (self.advertised, self.public) if each)
        if host.lower() in known:
            return True
        name, port = _split(host.lower(), self.address.port)
        if port != str(self.address.port):
            return False
        if name in _OWN_NAMES or name == self.private:
            return True
        if self.address.is_any:  # an IP literal cannot be rebound by DNS
            return is_ip(name.strip("[]"))
        return f"{name}:{port}" == self.address.written.lower()

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Whether `origin` is a page of this server, in a request to one of its hosts."""
        if self.public is not None and host.lower() == self.public.partition("://")[2]:
            return origin == self.public
        return origin == f"http://{host}"

    @property
    def servers_url(self) -> str:
        """The URL of this server for other servers."""
        return self.advertised or self.url

    @property
    def page_url(self) -> str:
        """The URL for browsers: the load balancer's, or a private `.localhost` name, which
        browsers resolve to this machine themselves."""
        if self.public is not None:
            return self.public
        if self.private is None or not self.address.is_local:
            return self.url
        return f"http://{self.private}:{self.address.port}"

    @property
    def url(self) -> str:
        """The URL for programs on this machine."""
        host = self.address.host
        if self.address.is_any:
            host = "::1" if ":" in host else "127.0.0.1"
        return f"http://{Address(host, self.address.port).written}"


def _split(host: str, port: int) -> tuple[str, str]:
    """Return name and port of a `Host` header, whose default port is 80."""
    if port == 80 and (host.endswith("]") or ":" not in host):
        return host, "80"
    name, _, port_text = host.rpartition(":")
    return name, port_text
