"""The instance itself: liveness, readiness, metrics, its description, and login.

`/healthz` shows that the process answers, `/readyz` that load balancers may send requests here.
Both need no token.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Literal

from msgspec import Meta

from callgate.core.sessions import Mode
from callgate.core.stores import StoreError
from callgate.core.version import __version__
from callgate.features.reporting.prometheus import MEDIA_TYPE, Labels, exposition, gauges
from callgate.features.web.access import SHORT_S
from callgate.features.web.contexts import OK, Context, Operation, ParsedRequest
from callgate.features.web.guard import cookie_name
from callgate.features.web.responses import (
    HttpResponse,
    html_response,
    not_ready,
    redirect,
    text_response,
    unauthorized,
)
from callgate.features.web.routes.values import Input, Value


class Health(Value, frozen=True, kw_only=True):
    ok: Literal[True] = True
    version: str


class Ready(Value, frozen=True, kw_only=True):
    ok: Literal[True] = True
    checks: dict[str, str]
    """`ok` for each check. If one fails, the answer is 503, and its details have the checks."""


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
    """The version of the policy in the first workspace."""
    settings_problem: str | None
    """The reason why the settings are invalid, so that calls with effects are refused."""
    restart_for: list[str]
    """Changed parts of the settings that need a restart."""


class Login(Value, frozen=True, kw_only=True):
    url: str
    """Valid once."""
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


async def get_health(context: Context, request: ParsedRequest) -> Health:
    return Health(version=context.served.version)


async def get_readiness(context: Context, request: ParsedRequest) -> Ready:
    checks = await context.readiness.checks()
    if any(found != OK for found in checks.values()):
        raise not_ready(checks)
    return Ready(checks=dict(checks))


async def get_instance(context: Context, request: ParsedRequest) -> Instance:
    served = context.served
    settings = context.runtime.permission.settings_state(served.workspaces[0])
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


async def create_login(context: Context, request: ParsedRequest) -> Login:
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
    <title>This link has expired · callgate</title>
    <link rel="icon" href="/favicon.svg" type="image/svg+xml">
    <link rel="stylesheet" href="/app.css">
  </head>
  <body>
    <main class="empty">
      <h1>This login link has expired.</h1>
      <p>A link works once, and for one minute. It is also void after a restart of callgate. Create
        a new link in a terminal:</p>
      <p class="command"><code>callgate dashboard</code></p>
      <p>If this browser is already logged in, open <a href="/">the dashboard</a>.</p>
    </main>
  </body>
</html>
"""


async def log_in(context: Context, request: ParsedRequest) -> HttpResponse:
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


async def get_proof(context: Context, request: ParsedRequest) -> Proof:
    query: Nonce = request.query
    return Proof(proof=context.access.proof(query.nonce, context.names.url))


async def rotate_token(context: Context, request: ParsedRequest) -> Rotated:
    await context.access.rotate()
    return Rotated()


OPERATIONS = (
    Operation("GET", "/healthz", "Check liveness.", get_health, Health, unlocked=True),
    Operation(
        "GET",
        "/readyz",
        "Check readiness.",
        get_readiness,
        Ready,
        unlocked=True,
    ),
    Operation(
        "GET",
        "/login",
        "Exchange a login link for a cookie.",
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
    Operation("GET", "/v1/instance", "Describe the instance.", get_instance, Instance),
    Operation("POST", "/v1/login", "Create a login link for a browser.", create_login, Login),
    Operation(
        "POST",
        "/v1/token/rotate",
        "Revoke every token and cookie.",
        rotate_token,
        Rotated,
        while_draining=True,
    ),
)


_WAIT_S = 2.0
"""Time limit of the store, so that a scrape is never delayed longer."""


async def get_metrics(context: Context, request: ParsedRequest) -> HttpResponse:
    assert context.metrics is not None
    readable = 1.0
    try:
        await asyncio.to_thread(context.metrics.read)
    except OSError:
        readable = 0.0
    checks = await context.readiness.checks()
    health: dict[Labels, float] = {
        (("check", name),): float(found == "ok") for name, found in checks.items()
    }
    health[(("check", "audit"),)] = readable * float(context.runtime.calls.is_recordable())
    values: dict[str, tuple[str, dict[Labels, float]]] = {
        "callgate_up": ("What runs here", {(("version", __version__),): 1.0}),
        "callgate_healthy": ("Whether a part of the instance is in order", health),
        "callgate_calls_in_flight": (
            "Calls under way",
            {(): len(context.runtime.calls.in_flight())},
        ),
        "callgate_audit_bytes": ("Size of the audit file that is written", {(): _size(context)}),
    }
    waiting = await _waiting(context)
    if waiting is not None:
        values["callgate_questions_waiting"] = ("Questions without an answer", {(): waiting})
    lines = [*gauges(values), *context.metrics.lines()]
    return text_response(200, exposition(lines), MEDIA_TYPE)


async def _waiting(context: Context) -> int | None:
    """Return the number of open questions; None if the store does not answer in time."""
    try:
        async with asyncio.timeout(_WAIT_S):
            return len(await context.runtime.permission.open_confirmations())
    except (TimeoutError, StoreError):
        return None


def _size(context: Context) -> int:
    try:
        return os.stat(context.served.audit).st_size
    except OSError:
        return 0


METRICS_OPERATIONS = (
    Operation("GET", "/metrics", "Return metrics of calls for Prometheus.", get_metrics, None),
)
