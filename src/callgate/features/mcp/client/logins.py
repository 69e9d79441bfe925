"""Login to an MCP server: OAuth 2.1 by the SDK, in the user's browser.

    401 -> discover -> register -> browser (PKCE, state) -> 127.0.0.1:PORT/callback -> tokens

Only a command that the user runs (`callgate mcp login`, `add`, `approve`) opens a browser. A call
uses stored tokens and refreshes them; without a token its error names the login command.
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

from callgate.core.errors import ToolError
from callgate.core.http import Loopback
from callgate.core.local.environment import off_loop, off_loop_surely

M = TypeVar("M", bound=BaseModel)
WAIT_S = 300.0
"""Time limit for the login in the browser."""
RENEW_BEFORE_S = 30.0
TokenChange = Callable[[dict[str, Any]], dict[str, Any]]


class TokenStore(Protocol):
    """Tokens and client registration of a server; implemented by `config.mcp_tokens.TokenFile`."""

    def mark(self) -> object:
        """Return a value that differs after each change."""
        ...

    def read(self) -> dict[str, Any]: ...

    def update(self, change: TokenChange) -> None:
        """Apply `change`. It may be called again if another server wrote at the same time."""
        ...

    def refresh(self) -> None:
        """Make the next read return everything that any server has written."""
        ...

    def claim(self) -> None:
        """Wait for the lock on refreshing this login."""
        ...

    def release(self) -> None: ...


class NotLoggedIn(ToolError):
    def __init__(self, server: str) -> None:
        super().__init__(
            f"it requires a login: run callgate mcp login {server}", reason="mcp_login"
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
    """Return the OAuth client of a server. `show` opens the login page; None: no login."""
    store = _UrlBoundStore(store, url)
    known = store.read()
    here = port or known.get("port") or 0
    if show is not None:
        here = _free_port(here)
    if show is not None and here != known.get("port"):
        # A client registration is bound to its redirect URI, which contains the port.
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
    """A token store bound to a URL: a server of the same name at another URL gets no tokens."""

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
    """The SDK's provider, with stored expiry times and metadata, and shared refreshes.

    A client secret from the settings is sent only to the first issuer.

    Several servers may share a login, and a refresh token may be valid only once. A server
    therefore refreshes under a lock, and only if no other server has refreshed before:

        request -> read again if changed -> expired? claim, read again -> still? refresh -> release
    """

    _loaded = False
    _seen: object = None

    @property
    def _initialized(self) -> bool:
        """Checked by the SDK before each request; if False, it calls `_initialize`."""
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
            if not self._is_due():  # another server has refreshed the token
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
        """Store tokens, also if the caller is cancelled: the old token may be invalid by now."""
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
        """Bind the client of the settings to an issuer. Raises `ToolError` for a second issuer."""
        if self._given is None:
            return
        known = self._store.read()
        if known.get("issuer", issuer) != issuer:
            raise ToolError(
                f"its login server has changed from {known['issuer']} to {issuer}: if that is "
                "correct, remove the server and add it again",
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
    """Return `wanted` if it is free, else another free port."""
    for each in (wanted, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trying.bind(("127.0.0.1", each))
            except (OSError, TypeError, OverflowError):
                continue
            port: int = trying.getsockname()[1]
            return port
    raise ToolError("no local port is free for the login callback")


class _BrowserLogin:
    """One login in a browser."""

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
            raise ToolError("its login URL is not http or https")
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
