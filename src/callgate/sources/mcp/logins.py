"""Logging in at an MCP server: OAuth 2.1, by the SDK, with the browser of the person at hand.

    401 -> discover -> register -> browser (PKCE, state) -> 127.0.0.1:PORT/callback -> tokens

Only a command that a person runs (`callgate mcp login`, `add`, `approve`) opens a browser; a call
uses the tokens that there are, renews them, and otherwise says which command to run.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import BaseModel, ValidationError

from callgate.core.environment import off_loop, off_loop_surely
from callgate.core.errors import ToolError
from callgate.http_client.loopback import Loopback

M = TypeVar("M", bound=BaseModel)
WAIT_S = 300.0
"""For the person in the browser."""
RENEW_BEFORE_S = 30.0
TokenChange = Callable[[dict[str, Any]], dict[str, Any]]


class TokenStore(Protocol):
    """The tokens and the registration of a server; `config.mcp_tokens.TokenFile` implements it."""

    def mark(self) -> object:
        """Another one after each change."""
        ...

    def read(self) -> dict[str, Any]: ...

    def update(self, change: TokenChange) -> None:
        """Idempotent: `change` may be called again, with what another server wrote meanwhile."""
        ...

    def refresh(self) -> None:
        """Have the next read see all that was written before, by any server."""
        ...

    def claim(self) -> None:
        """Wait until no other server renews this login."""
        ...

    def release(self) -> None: ...


class NotLoggedIn(ToolError):
    def __init__(self, server: str) -> None:
        super().__init__(
            f"it wants to know who you are: callgate mcp login {server}", reason="mcp_login"
        )


def provider(
    server: str,
    url: str,
    store: TokenStore,
    *,
    show: Callable[[str], None] | None = None,
    scopes: tuple[str, ...] = (),
    client_id: str | None = None,
    client_secret: str | None = None,
    client_metadata_url: str | None = None,
    port: int | None = None,
) -> OAuthClientProvider:
    """`show` sends a person to an address; without, nobody is there."""
    store = _UrlBoundStore(store, url)
    known = store.read()
    here = port or known.get("port") or 0
    if show is not None:
        here = _free_port(here)
    if show is not None and here != known.get("port"):
        # A registration is for one address to come back to.
        store.update(lambda known: {**_without(known, "client"), "port": here})
    back = f"http://127.0.0.1:{here}/callback"
    metadata = OAuthClientMetadata.model_validate(
        {
            "redirect_uris": [back],
            "client_name": "callgate",
            "scope": " ".join(scopes) or None,
            "token_endpoint_auth_method": "none" if client_secret is None else None,
        }
    )
    given = None
    if client_id is not None:
        given = OAuthClientInformationFull.model_validate(
            {
                "client_id": client_id,
                "client_secret": client_secret,
                "redirect_uris": [back],
                "token_endpoint_auth_method": "none"
                if client_secret is None
                else "client_secret_basic",
            }
        )
    login = _BrowserLogin(server, show, here)
    return _Provider(
        url,
        metadata,
        _Storage(store, given),
        redirect_handler=login.open,
        callback_handler=login.wait,
        client_metadata_url=client_metadata_url,
    )


class _UrlBoundStore:
    """What was kept of a server, for the address at which it was given: a server of the same name
    that is elsewhere now is not shown it."""

    def __init__(self, store: TokenStore, url: str) -> None:
        self._store = store
        self._url = url

    def read(self) -> dict[str, Any]:
        known = self._store.read()
        return known if known.get("url") == self._url else {}

    def update(self, change: TokenChange) -> None:
        def changed(known: dict[str, Any]) -> dict[str, Any]:
            ours = known if known.get("url") == self._url else {}
            return {**change(ours), "url": self._url}

        self._store.update(changed)

    def mark(self) -> object:
        return self._store.mark()

    def refresh(self) -> None:
        self._store.refresh()

    def claim(self) -> None:
        self._store.claim()

    def release(self) -> None:
        self._store.release()


class _Provider(OAuthClientProvider):
    """Knows also of tokens that were kept when they expire, and where they are renewed; and who
    was first shown a secret that the settings gave us: nobody else is.

    A login may be shared with other servers, and a refresh token be good once. So whoever wants
    to renew claims it, looks what the others have got meanwhile, and renews only if that is old:

        request -> read again if changed -> expired? claim, read again -> still? renew -> release
    """

    _loaded = False
    _seen: object = None

    @property
    def _initialized(self) -> bool:
        """Asked by the SDK before each request; False has it call `_initialize`."""
        storage = self.context.storage
        if not self._loaded or not isinstance(storage, _Storage):
            return self._loaded
        return not self._is_due() and storage.mark() == self._seen

    @_initialized.setter
    def _initialized(self, value: bool) -> None:
        self._loaded = value

    async def _initialize(self) -> None:
        storage = self.context.storage
        await self._read(storage)
        if isinstance(storage, _Storage) and self._is_due():
            await storage.claim()
            await self._read(storage)
            if not self._is_due():  # another server was faster
                await storage.release()

    async def _read(self, storage: TokenStorage) -> None:
        self._seen = storage.mark() if isinstance(storage, _Storage) else None
        await super()._initialize()
        tokens = self.context.current_tokens
        if tokens is not None and isinstance(storage, _Storage):
            self.context.token_expiry_time = storage.expires_at()
            self.context.oauth_metadata = storage.get("metadata", OAuthMetadata)

    def _is_due(self) -> bool:
        return not self.context.is_token_valid() and self.context.can_refresh_token()

    async def _handle_refresh_response(self, response: httpx2.Response) -> bool:
        storage = self.context.storage
        try:
            return await super()._handle_refresh_response(response)
        finally:
            if isinstance(storage, _Storage):
                await storage.release()

    async def _perform_authorization(self) -> httpx2.Request:
        storage, metadata = self.context.storage, self.context.oauth_metadata
        if metadata is not None and isinstance(storage, _Storage):
            await storage.ensure_for(str(metadata.issuer))
        return await super()._perform_authorization()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await super()._handle_token_response(response)
        storage, metadata = self.context.storage, self.context.oauth_metadata
        if metadata is not None and isinstance(storage, _Storage):
            await storage.set("metadata", metadata)


class _Storage:
    def __init__(self, store: TokenStore, given: OAuthClientInformationFull | None) -> None:
        self._store = store
        self._given = given

    async def get_tokens(self) -> OAuthToken | None:
        return self.get("tokens", OAuthToken)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Done also where the caller is cancelled: the token before it may be good no more."""
        data = _dumped(tokens)
        lifetime = tokens.expires_in
        expires = None if lifetime is None else time.time() + lifetime - RENEW_BEFORE_S
        await off_loop_surely(
            lambda: self._store.update(
                lambda known: {**known, "tokens": data, "expires_at": expires}
            )
        )

    async def claim(self) -> None:
        await off_loop(self._store.claim)
        await off_loop(self._store.refresh)

    async def release(self) -> None:
        await off_loop_surely(self._store.release)

    def mark(self) -> object:
        return self._store.mark()

    def expires_at(self) -> float | None:
        expires = self._store.read().get("expires_at")
        return expires if isinstance(expires, float) else None

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._given or self.get("client", OAuthClientInformationFull)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if self._given is None:
            await self.set("client", client_info)

    async def ensure_for(self, issuer: str) -> None:
        """Raises a `ToolError` where the client of the settings belongs to another issuer."""
        if self._given is None:
            return
        known = self._store.read()
        if known.get("issuer", issuer) != issuer:
            raise ToolError(
                f"it sends people to {issuer} to log in now, and did to {known['issuer']} before: "
                "if that is right, remove it and add it again",
                reason="mcp_login",
            )
        await off_loop_surely(lambda: self._store.update(lambda known: {**known, "issuer": issuer}))

    def get(self, name: str, kind: type[M]) -> M | None:
        stored = self._store.read().get(name)
        try:
            return None if stored is None else kind.model_validate(stored)
        except ValidationError:
            return None

    async def set(self, name: str, value: BaseModel) -> None:
        data = _dumped(value)
        await off_loop_surely(lambda: self._store.update(lambda known: {**known, name: data}))


def _dumped(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_none=True)


def _without(known: dict[str, Any], key: str) -> dict[str, Any]:
    return {each: known[each] for each in known if each != key}


def _free_port(wanted: int) -> int:
    """`wanted`, if it is free, else another."""
    for each in (wanted, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trying.bind(("127.0.0.1", each))
            except (OSError, TypeError, OverflowError):
                continue
            port: int = trying.getsockname()[1]
            return port
    raise ToolError("no port of this machine is free")


class _BrowserLogin:
    """One login of a person in a browser."""

    def __init__(self, server: str, show: Callable[[str], None] | None, port: int) -> None:
        self._server = server
        self._show = show
        self._port = port
        self._back: Loopback | None = None

    async def open(self, url: str) -> None:
        if self._show is None:
            raise NotLoggedIn(self._server)
        address = urlsplit(url)
        if address.scheme not in ("http", "https"):
            raise ToolError("it sends people to an address that is none of http or https")
        state = parse_qs(address.query).get("state", [""])[0]
        back = Loopback(self._port, path="/callback", state=state)
        self._back = await back.__aenter__()
        self._show(url)

    async def wait(self) -> AuthorizationCodeResult:
        assert self._back is not None
        try:
            query = await self._back.visit(WAIT_S)
        finally:
            await self._back.__aexit__()
        if "code" not in query:
            raise ToolError("the login was refused", reason="mcp_login")
        return AuthorizationCodeResult(
            code=query["code"], state=query["state"], iss=query.get("iss")
        )
