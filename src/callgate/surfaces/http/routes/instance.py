"""The instance itself: that it lives, what it is, and how one gets in."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from msgspec import Meta

from callgate.core.sessions import Mode
from callgate.surfaces.http.access import SHORT_S
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.guard import cookie_name
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import not_ready, unauthorized
from callgate.surfaces.http.readiness import OK
from callgate.surfaces.http.responses import HttpResponse, html_response, redirect
from callgate.surfaces.http.routes.values import Input, Value


class Health(Value, frozen=True, kw_only=True):
    ok: Literal[True] = True
    version: str


class Ready(Value, frozen=True, kw_only=True):
    ok: Literal[True] = True
    checks: dict[str, str]
    """By what was looked at, each `ok`. Otherwise the answer is 503 and its details say which
    is not."""


class Instance(Value, frozen=True, kw_only=True):
    pid: int
    version: str
    started_at: float
    workspaces: list[str]
    mode: Mode
    model: str | None
    models: list[str]
    home: str
    policy: str
    """The version of the policy in force in the first workspace."""
    settings_problem: str | None
    """Why the settings cannot be used; calls with effects are refused."""
    restart_for: list[str]
    """Parts of the settings that changed, and that only a start reads."""


class Login(Value, frozen=True, kw_only=True):
    url: str
    """Good once."""
    expires_at: float


class Code(Input, frozen=True, kw_only=True):
    code: Annotated[str, Meta(min_length=1, max_length=400)]


class Nonce(Input, frozen=True, kw_only=True):
    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Proof(Value, frozen=True, kw_only=True):
    proof: str
    """HMAC-SHA256 of the nonce and the address of the instance, with the token as its key."""


class Rotated(Value, frozen=True, kw_only=True):
    rotated: Literal[True] = True


async def get_health(context: Context, request: Request) -> Health:
    return Health(version=context.served.version)


async def get_readiness(context: Context, request: Request) -> Ready:
    checks = await context.readiness.checks()
    if any(found != OK for found in checks.values()):
        raise not_ready(checks)
    return Ready(checks=dict(checks))


async def get_instance(context: Context, request: Request) -> Instance:
    served = context.served
    settings = context.runtime.settings_state(served.workspaces[0])
    return Instance(
        pid=served.pid,
        version=served.version,
        started_at=served.started_at,
        workspaces=served.workspaces,
        mode=served.mode,
        model=served.model,
        models=served.models,
        home=served.home,
        policy=settings.version,
        settings_problem=settings.problem,
        restart_for=list(settings.restart_for),
    )


async def create_login(context: Context, request: Request) -> Login:
    code = context.access.new_code()
    return Login(
        url=f"{context.names.page_url}/login?code={code}", expires_at=time.time() + SHORT_S
    )


_USED_LINK = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <title>This link is used up · callgate</title>
    <link rel="icon" href="/favicon.svg" type="image/svg+xml">
    <link rel="stylesheet" href="/app.css">
  </head>
  <body>
    <main class="empty">
      <h1>This link does not log you in any more.</h1>
      <p>A link works once, and for a minute. It was used already, it is older than that, or
        callgate was started anew since. In a terminal:</p>
      <p class="command"><code>callgate dashboard</code></p>
      <p>makes a new one. If this browser is logged in, <a href="/">the dashboard</a> is there.</p>
    </main>
  </body>
</html>
"""


async def log_in(context: Context, request: Request) -> HttpResponse:
    query: Code = request.query
    cookie = await context.access.log_in(query.code)
    if cookie is None:
        if not context.access.is_ready:
            raise not_ready({"store": "unreachable"})
        if "text/html" in request.accepts:
            return html_response(401, _USED_LINK)
        raise unauthorized()
    name = cookie_name(context.names)
    secure = "; Secure" if (context.names.public or "").startswith("https://") else ""
    return redirect("/", f"{name}={cookie}; HttpOnly; SameSite=Strict; Path=/{secure}")


async def get_proof(context: Context, request: Request) -> Proof:
    query: Nonce = request.query
    return Proof(proof=context.access.proof(query.nonce, context.names.url))


async def rotate_token(context: Context, request: Request) -> Rotated:
    await context.access.rotate()
    return Rotated()


OPERATIONS = (
    Operation("GET", "/healthz", "Whether it lives.", get_health, Health, unlocked=True),
    Operation(
        "GET",
        "/readyz",
        "Whether it takes work.",
        get_readiness,
        Ready,
        unlocked=True,
    ),
    Operation(
        "GET",
        "/login",
        "Turn a login link into a cookie.",
        log_in,
        None,
        query=Code,
        status=303,
        errors=(401,),
        unlocked=True,
    ),
    Operation(
        "GET",
        "/v1/proof",
        "Prove that this listener has the token.",
        get_proof,
        Proof,
        query=Nonce,
        unlocked=True,
    ),
    Operation("GET", "/v1/instance", "What runs here.", get_instance, Instance),
    Operation("POST", "/v1/login", "A link that logs a browser in, once.", create_login, Login),
    Operation(
        "POST",
        "/v1/token/rotate",
        "Void every token and cookie.",
        rotate_token,
        Rotated,
        while_draining=True,
    ),
)
