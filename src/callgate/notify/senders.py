"""Sends a notice to one target: once, within a limit. Retries are for `notices`."""

from __future__ import annotations

import asyncio
import os
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from typing import Any

import httpx2
import msgspec

from callgate.config.schema import NoticeTarget
from callgate.core.commands import Command, Launcher
from callgate.http_client.clients import is_loopback, open_client, post
from callgate.notify import messages
from callgate.notify.messages import Notice
from callgate.sandbox.launch import without_secrets_keys

LIMIT_S = 10.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_SHAPES: Mapping[str, Callable[[Notice], dict[str, Any]]] = {
    "webhook": messages.as_json,
    "slack": messages.slack,
    "teams": messages.teams,
}


class NotSent(Exception):
    """Why, without anything secret; `is_final`: it would not go better the next time."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        super().__init__(problem)
        self.is_final = is_final


async def send(notice: Notice, target: NoticeTarget, launcher: Callable[[], Launcher]) -> None:
    """Raises `NotSent`."""
    try:
        async with asyncio.timeout(LIMIT_S):
            if target.kind == "command":
                await _run(notice, target.command, launcher())
            elif target.kind == "email":
                await asyncio.to_thread(_mail, notice, target)
            else:
                await _post(_SHAPES[target.kind](notice), target)
    except TimeoutError:
        raise NotSent(f"was not done in {LIMIT_S:g} s") from None


async def _post(body: dict[str, Any], target: NoticeTarget) -> None:
    url = httpx2.URL(target.url or _secret(target.url_env))
    if url.scheme not in ("http", "https") or not url.host:
        raise NotSent("has no address", is_final=True)
    headers = {"content-type": "application/json"}
    if target.token_env is not None:
        if url.scheme == "http" and not is_loopback(url.host):
            raise NotSent("a token is sent over https, or to this machine", is_final=True)
        headers["authorization"] = f"Bearer {_secret(target.token_env)}"
    try:
        async with open_client(url, silent_s=LIMIT_S) as client:
            status, _ = await post(client, url, msgspec.json.encode(body), headers)
    except httpx2.HTTPError as error:
        raise NotSent(f"does not answer ({type(error).__name__})") from None
    if not 200 <= status < 300:
        final = 400 <= status < 500 and status not in (408, 425, 429)
        raise NotSent(f"answered {status}", is_final=final)


def _mail(notice: Notice, target: NoticeTarget) -> None:
    assert target.host is not None
    assert target.sender is not None
    message = messages.email(notice, target.sender, target.to)
    try:
        _deliver(message, target)
    except smtplib.SMTPResponseException as error:
        final = 500 <= error.smtp_code < 600
        raise NotSent(f"the mail server answered {error.smtp_code}", is_final=final) from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotSent(f"the mail server cannot be used ({type(error).__name__})") from None


def _deliver(message: EmailMessage, target: NoticeTarget) -> None:
    assert target.host is not None
    port = target.port or _PORTS[target.security]
    context = ssl.create_default_context()
    name = socket.gethostname()  # else it would look for its own name in the network
    with (
        smtplib.SMTP_SSL(target.host, port, name, timeout=LIMIT_S, context=context)
        if target.security == "tls"
        else smtplib.SMTP(target.host, port, name, timeout=LIMIT_S)
    ) as server:
        if target.security == "starttls":
            server.starttls(context=context)
        if target.password_env is not None:
            server.login(target.user or target.sender or "", _secret(target.password_env))
        server.send_message(message)


async def _run(notice: Notice, argv: list[str], launcher: Launcher) -> None:
    """The user's own program, with the notice on stdin; nothing of it is left behind."""
    theirs, ours = os.pipe()
    try:
        os.write(ours, msgspec.json.encode(messages.as_json(notice)) + b"\n")  # fits into the pipe
        os.close(ours)
        environ = without_secrets_keys(os.environ)
        command = Command(argv=tuple(argv), cwd="/", env=environ, stdin=theirs)
        running = await launcher.start(command, lambda stream, data: None)
    except OSError as error:
        raise NotSent(f"cannot be started: {error.strerror or error}", is_final=True) from None
    finally:
        os.close(theirs)
    async with running:
        ended = await running.wait()
    if ended.code != 0:
        raise NotSent(f"ended with {ended.code if ended.code is not None else 'a signal'}")


def _secret(variable: str | None) -> str:
    value = os.environ.get(variable or "", "")
    if not value:
        raise NotSent(f"the variable {variable} is empty", is_final=True)
    return value
