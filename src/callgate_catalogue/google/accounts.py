"""Google accounts of a home: logins, scopes and valid tokens.

    google.json (0600): the default account; client, scopes and tokens of each account

Light to import: the request code is loaded when a token has expired.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec

from callgate import ToolError, ToolExecutionError, ToolPermissionDenied
from callgate.packs.files import TokenFile, off_loop_surely
from callgate_catalogue.settings import GoogleTable

if TYPE_CHECKING:
    from callgate_catalogue.google.oauth import Endpoints, OAuthClient, Tokens


SCOPE = "https://www.googleapis.com/auth/"
"""Prefix of scope names on the wire; elsewhere the names are short."""


def short(scope: str) -> str:
    return scope.removeprefix(SCOPE)


def full_scope(scope: str) -> str:
    """Return the scope's name on the wire; `openid` and `email` have no other name."""
    return scope if "/" in scope or scope in ("openid", "email") else SCOPE + scope


class Granted:
    """Access token of an account."""

    __slots__ = ("account", "token")

    def __init__(self, account: str, token: str) -> None:
        self.account, self.token = account, token

    def __repr__(self) -> str:
        return f"Granted({self.account!r})"


def login_command(account: str | None = None, scope: str | None = None) -> str:
    """Return the command that logs in or extends the permissions."""
    words = ["callgate auth google login"]
    words += [] if account is None else [f"--account {account}"]
    words += [] if scope is None else [f"--scope {short(scope)}"]
    return " ".join(words)


def not_allowed(account: str, scope: str) -> ToolError:
    """Return the error for a scope that the person has not granted."""
    return ToolExecutionError(
        f"The Google account {account} has not allowed {short(scope)} yet; run: "
        + login_command(account, scope),
        reason="google_scope",
        details={"status": 403},
    )


USUAL = "default"
"""Name of an account that was added without a name."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_MARGIN_S = 60.0
"""Minimum remaining lifetime of a token that is sent."""
_NOBODY = f"no Google account is logged in; run: {login_command()}"


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    client_id: str
    refresh_token: str
    client_secret: str = ""
    access_token: str = ""
    expires_at: float = 0.0
    scopes: tuple[str, ...] = ()
    email: str = ""
    read_only: bool = False

    def __repr__(self) -> str:
        return f"Account({self.email!r})"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file."""

    usual: str | None = None
    accounts: dict[str, Account] = {}


def check_name(name: str) -> str:
    """Return a valid account name. Raises `ValueError` for an invalid one."""
    if not _NAME.match(name):
        raise ValueError(
            f"{name!r} is not a valid account name: use at most 64 of a-z, 0-9, '.', '_', '-'"
        )
    return name


def endpoints(table: GoogleTable) -> Endpoints:
    """Return the endpoints for logins and tokens."""
    urls = {
        "auth": table.auth_endpoint,
        "token": table.token_endpoint,
        "revoke": table.revoke_endpoint,
    }
    from callgate_catalogue.google.oauth import Endpoints  # lazy: heavy, only for a login  # noqa: PLC0415

    return Endpoints(**{name: url for name, url in urls.items() if url})


class GoogleAccounts:
    """Implements `requests.Credentials`."""

    def __init__(self, home: str, table: GoogleTable) -> None:
        self._table = table
        self._path = os.path.join(home, "google.json")
        self._file = TokenFile(self._path, home)
        self._seen: tuple[object, Known] = (None, Known())
        self._renewing: dict[str, asyncio.Lock] = {}

    def known(self) -> Known:
        """Return the content of the file, which is read again only after a change.

        Raises a `ToolError` if other users could have read the file, or decryption fails.
        """
        try:
            mark = self._file.mark()
            if self._seen[0] != mark:
                self._seen = (mark, self._converted(self._file.read()))
        except ToolError as error:
            self._seen = (None, Known())
            raise ToolExecutionError(error.message, reason="google_login") from None
        return self._seen[1]

    def _converted(self, document: dict[str, Any]) -> Known:
        try:
            return msgspec.convert(document, Known)
        except msgspec.ValidationError:
            message = f"{self._path} was not written by callgate auth google"
            raise ToolExecutionError(message, reason="google_login") from None

    def usual(self) -> str | None:
        """Return the account for calls without an account name."""
        return self._table.account or self.known().usual

    def why_not(self, *, writes: bool) -> str | None:
        try:
            accounts = self.known().accounts
        except ToolError as error:
            return error.message
        if not accounts:
            return _NOBODY
        if writes and all(each.read_only for each in accounts.values()):
            return f"the Google account is read-only; run: {login_command()} SERVICE"
        return None

    async def token(self, account: str | None, scopes: Collection[str], *, writes: bool) -> Granted:
        name, found = self._find(account)
        if writes and found.read_only:
            raise ToolPermissionDenied(
                f"The Google account {name} is read-only; run: {login_command(name)} SERVICE",
                reason="google_read_only",
            )
        if not {full_scope(each) for each in scopes} & set(found.scopes):
            raise not_allowed(name, next(iter(scopes)))
        if found.expires_at - _MARGIN_S > time.time():
            return Granted(name, found.access_token)
        return await self.renewed(Granted(name, found.access_token))

    async def renewed(self, refused: Granted) -> Granted:
        """Renew a token. Concurrent callers share one refresh."""
        name = refused.account
        async with self._renewing.setdefault(name, asyncio.Lock()):
            _, found = self._find(name)
            fresh = found.expires_at - _MARGIN_S > time.time()
            if not fresh or found.access_token in ("", refused.token):
                found = await self._refresh(name, found)
            return Granted(name, found.access_token)

    def _find(self, account: str | None) -> tuple[str, Account]:
        name, accounts = account or self.usual(), self.known().accounts
        if name is not None and name in accounts:
            return name, accounts[name]
        if not accounts:
            text = f"{_NOBODY[0].upper()}{_NOBODY[1:]}"
        else:
            text = f"There is no Google account {name!r}, but: {', '.join(sorted(accounts))}"
        raise ToolExecutionError(text + ".", reason="google_login")

    async def _refresh(self, name: str, account: Account) -> Account:
        from callgate_catalogue.google import oauth  # lazy: heavy, once a token has run out  # noqa: PLC0415

        client = oauth.OAuthClient(account.client_id, account.client_secret)
        known = oauth.Tokens(
            access_token=account.access_token,
            expires_at=account.expires_at,
            refresh_token=account.refresh_token,
            scopes=account.scopes,
            email=account.email,
        )
        try:
            tokens = await oauth.refresh(endpoints(self._table), client, known)
        except oauth.LoginExpired as error:
            raise ToolExecutionError(
                f"{error.message.rstrip('.')}; run: {login_command(name)}", reason="google_login"
            ) from None
        renewed = _account(tokens, client, read_only=account.read_only)

        def change(now: Known) -> Known:
            current = now.accounts.get(name)
            # A concurrent login or logout takes precedence.
            if current is None or current.refresh_token != account.refresh_token:
                return now
            return Known(usual=now.usual, accounts={**now.accounts, name: renewed})

        await off_loop_surely(lambda: self._update(change))
        return renewed

    def put(self, name: str, tokens: Tokens, client: OAuthClient, *, read_only: bool) -> None:
        """Store the tokens of a login. The first account becomes the default."""
        account = _account(tokens, client, read_only=read_only)
        self._update(
            lambda now: Known(usual=now.usual or name, accounts={**now.accounts, name: account})
        )

    def forget(self, name: str) -> None:
        def change(now: Known) -> Known:
            left = {each: account for each, account in now.accounts.items() if each != name}
            usual = now.usual if now.usual in left else next(iter(left), None)
            return Known(usual=usual, accounts=left)

        self._update(change)

    def _update(self, change: Callable[[Known], Known]) -> None:
        """Apply `change`, again with the new content if another process wrote the file."""

        def changed(document: dict[str, Any]) -> dict[str, Any]:
            after: dict[str, Any] = msgspec.to_builtins(change(self._converted(document)))
            return after

        try:
            self._file.update(changed)
        except ToolError as error:
            raise ToolExecutionError(error.message, reason="google_login") from None
        finally:
            self._seen = (None, Known())


def _account(tokens: Tokens, client: OAuthClient, *, read_only: bool) -> Account:
    return Account(
        client_id=client.client_id,
        client_secret=client.client_secret,
        refresh_token=tokens.refresh_token,
        access_token=tokens.access_token,
        expires_at=tokens.expires_at,
        scopes=tokens.scopes,
        email=tokens.email,
        read_only=read_only,
    )
