"""OAuth login at Google as an installed application: PKCE, a page on loopback, tokens.

browser -> consent -> 127.0.0.1:PORT/?code&state -> exchange -> tokens -> refresh ... revoke
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlencode

import httpx2
import msgspec

from callgate import ToolError, ToolExecutionError
from callgate.packs.http import Loopback, Masked, back_off, is_loopback, open_client, quoted

WAIT_S = 300.0
"""Page for the person in the browser."""
_SILENT_S = 20.0
_ATTEMPTS = 3
_MAX_BODY = 256 * 1024


Show = Callable[[str], None]
"""Open an address for a person."""


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    auth: str = "https://accounts.google.com/o/oauth2/v2/auth"
    token: str = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
    revoke: str = "https://oauth2.googleapis.com/revoke"


class OAuthClient(msgspec.Struct, frozen=True):
    """OAuth client of a desktop app, from Google's console."""

    client_id: str
    client_secret: str = ""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    access_token: str
    expires_at: float
    """Seconds since 1970."""
    refresh_token: str = ""
    scopes: tuple[str, ...] = ()
    email: str = ""


class LoginExpired(ToolExecutionError):
    """The refresh token is no longer valid: a person has to log in again."""


def read_client(data: bytes) -> OAuthClient:
    """Read a client file of Google's console. Raises `ValueError` for any other file."""
    try:
        read = msgspec.json.decode(data, type=dict[str, dict[str, Any]])
        return msgspec.convert(read.get("installed") or read["web"], OAuthClient)
    except (KeyError, ValueError, RecursionError):
        raise ValueError("it is not a client file of Google's console") from None


async def log_in(
    endpoints: Endpoints,
    client: OAuthClient,
    scopes: Collection[str],
    show: Show,
    *,
    port: int | None = None,
    wait_s: float = WAIT_S,
    hint: str = "",
    adds: bool = True,
) -> Tokens:
    """Log in. `adds` preserves earlier grants. Raises a `ToolError` of one sentence."""
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    try:
        async with Loopback(port) as back:
            query = {
                "response_type": "code",
                "client_id": client.client_id,
                "redirect_uri": back.address,
                "scope": " ".join(scopes),
                "state": back.state,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
                "access_type": "offline",
                "prompt": "consent",
                "include_granted_scopes": str(adds).lower(),
                **({"login_hint": hint} if hint else {}),
            }
            show(f"{_checked(endpoints.auth)}?{urlencode(query)}")
            redirect = await back.visit(wait_s)
            address = back.address
    except TimeoutError:
        raise _problem(f"No answer came from the browser within {wait_s:g} seconds.") from None
    except OSError:
        raise _problem(f"The port {port} of this machine cannot be used.") from None
    if "code" not in redirect:
        refused = redirect.get("error", "")
        raise _problem("The login was refused" + quoted(refused, Masked([])))
    form = {
        "grant_type": "authorization_code",
        "code": redirect["code"],
        "redirect_uri": address,
        "code_verifier": verifier,
    }
    tokens = await _tokens(endpoints.token, client, form, tuple(scopes))
    if not tokens.refresh_token:
        raise _problem("Google gave no refresh token; is the client one of a desktop app?")
    return tokens


async def refresh(endpoints: Endpoints, client: OAuthClient, known: Tokens) -> Tokens:
    """Refresh the tokens. Raises `LoginExpired` if a person has to log in again."""
    form = {"grant_type": "refresh_token", "refresh_token": known.refresh_token}
    got = await _tokens(endpoints.token, client, form, known.scopes, again=True)
    return msgspec.structs.replace(
        got, refresh_token=got.refresh_token or known.refresh_token, email=known.email
    )


async def revoke(endpoints: Endpoints, token: str) -> None:
    """Revoke all tokens of a login."""
    await _post(endpoints.revoke, {"token": token}, [token], again=True)


async def _tokens(
    url: str,
    client: OAuthClient,
    form: Mapping[str, str],
    scopes: tuple[str, ...],
    again: bool = False,
) -> Tokens:
    credentials = {"client_id": client.client_id}
    if client.client_secret:
        credentials["client_secret"] = client.client_secret
    body = await _post(
        url, {**form, **credentials}, [*form.values(), client.client_secret], again=again
    )
    try:
        got = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError):
        raise _problem("Google's answer to the login is invalid.") from None
    return Tokens(
        access_token=got.access_token,
        expires_at=time.time() + got.expires_in,
        refresh_token=got.refresh_token or "",
        scopes=tuple(got.scope.split()) if got.scope else scopes,
        email=_email(got.id_token),
    )


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float = 3600.0
    refresh_token: str | None = None
    scope: str | None = None
    id_token: str | None = None


class _Refusal(msgspec.Struct):
    error: str = ""
    error_description: str = ""


def _email(id_token: str | None) -> str:
    """Return the address in an id token, unverified: it came directly from Google over TLS."""
    try:
        claims = (id_token or "").split(".")[1]
        decoded = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        return str(msgspec.json.decode(decoded, type=dict[str, Any]).get("email") or "")
    except (IndexError, ValueError, RecursionError):
        return ""


async def _post(
    url: str, form: Mapping[str, str], secret: Collection[str], *, again: bool
) -> bytes:
    """Return the body of the answer. `again`: the request may be retried."""
    address = httpx2.URL(_checked(url))
    async with open_client(address, silent_s=_SILENT_S) as client:
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS or not again
            try:
                answer = await client.post(address, data=dict(form))
            except httpx2.HTTPError:
                if last:
                    raise _problem(f"{address.host} cannot be reached.") from None
            else:
                if answer.status_code < 300:
                    return bytes(answer.content[:_MAX_BODY])
                if last or (answer.status_code < 500 and answer.status_code != 429):
                    raise _refused(answer, Masked(secret))
            await asyncio.sleep(back_off(attempt, random.random()))  # noqa: S311 - jitter
    raise AssertionError


def _refused(answer: httpx2.Response, masked: Masked) -> ToolError:
    try:
        refusal = msgspec.json.decode(answer.content[:_MAX_BODY], type=_Refusal)
    except (ValueError, RecursionError):
        refusal = _Refusal()
    reason = quoted(refusal.error_description or refusal.error, masked)
    if refusal.error == "invalid_grant":
        return LoginExpired("The login is no longer valid" + reason, reason="google_login")
    return _problem(f"Google refused the login ({answer.status_code}){reason}")


def _problem(text: str) -> ToolError:
    return ToolExecutionError(text, reason="google_login")


def _checked(url: str) -> str:
    """Accept only TLS or loopback for tokens."""
    try:
        read = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        read = httpx2.URL("")
    if read.scheme == "https" or (read.scheme == "http" and is_loopback(read.host)):
        return url
    raise _problem("An endpoint of [google] must begin with https://, or refer to this machine.")
