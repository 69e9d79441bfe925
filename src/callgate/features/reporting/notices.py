"""Sends a notice to every target when a question has waited long enough, from one process.

    open questions --old enough--> claim in the store --first--> send, with retries --> done
                                        |
                                        +-- another process has it, or it was done

A claim expires, so that another process sends the notice if the first one dies. Targets never delay
the question or its call, because notices are sent in separate tasks. Each attempt has a time limit.

Every text was redacted when the question was created. It is truncated and reduced to plain text
here, in the format of the target, so that a tool's name or a path cannot become a link, a mention
or a header. A notice contains a link to the inbox. It never contains a secret, and nothing in it
can answer the question.

Checks for questions that have waited too long, if the settings of the instance have a target.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from email.message import EmailMessage
from typing import Any

import httpx2
import msgspec

from callgate.core.commands import Command, Launcher
from callgate.core.http import back_off, is_loopback, open_client, post
from callgate.core.ids import made_at
from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stored import SharedEntry
from callgate.core.stores import Store, StoreError
from callgate.core.tasks import TaskSet, start_task
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.features.reporting.settings import NoticeTarget, NotifyTable, ReportingSettings
from callgate.instance.instance import Service
from callgate.instance.wiring.runtime import Wired
from callgate.sandbox.plans import without_secrets_keys

_PLAIN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e]+")
_MARKUP = re.compile(r"[<>&*_~`\[\]()|#!\\@]")
_LONGEST = 500


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Notice about one question. It contains nothing that could answer the question."""

    question: str
    """Id of the question; it grants no access."""
    tool: str
    effect: str
    session: str
    waited_s: int
    expires_in_s: int
    link: str | None
    """Link to the inbox, which requires a login."""
    summary: str | None = None
    workspace: str | None = None


def sentence(notice: Notice) -> str:
    text = f"callgate waits for an answer: {plain(notice.tool)} ({plain(notice.effect)})"
    waited = f"{text}, for {notice.waited_s} s"
    left = f"; it is refused in {notice.expires_in_s} s" if notice.expires_in_s > 0 else ""
    return f"{waited}{left}."


def as_json(notice: Notice) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(notice)
    present = {key: value for key, value in fields.items() if value is not None}
    return {"type": "callgate.question_waiting", "text": sentence(notice), **present}


def slack(notice: Notice) -> dict[str, Any]:
    lines = [escape(line) for line in _lines(notice)]
    if notice.link is not None:
        lines.append(f"<{notice.link}|Open the inbox>")
    return {"text": "\n".join(lines)}


def teams(notice: Notice) -> dict[str, Any]:
    """Return a message with an adaptive card, for workflows of Teams."""
    body = [{"type": "TextBlock", "text": escape(line), "wrap": True} for line in _lines(notice)]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if notice.link is not None:
        card["actions"] = [
            {"type": "Action.OpenUrl", "title": "Open the inbox", "url": notice.link}
        ]
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def email(notice: Notice, sender: str, to: list[str]) -> EmailMessage:
    message = EmailMessage()
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = f"callgate waits for an answer: {plain(notice.tool)}"
    message["Auto-Submitted"] = "auto-generated"
    message["Message-ID"] = f"<{plain(notice.question)}@callgate.invalid>"
    lines = _lines(notice)
    if notice.link is not None:
        lines.append(f"Inbox: {notice.link}")
    message.set_content("\n".join(lines) + "\n")
    return message


def plain(text: str) -> str:
    """Return a text as one line without control and invisible characters."""
    return _PLAIN.sub(" ", text)[:_LONGEST]


def escape(text: str) -> str:
    """Return a text without markup: no link, mention or format."""
    return _MARKUP.sub(lambda found: f"\N{ZERO WIDTH NON-JOINER}{_HARMLESS[found[0]]}", text)


_HARMLESS = {each: each for each in "*_~`[]()|#!\\@"} | {"<": "‹", ">": "›", "&": "+"}


def _lines(notice: Notice) -> list[str]:
    lines = [sentence(notice)]
    if notice.workspace is not None:
        lines.append(f"Workspace: {plain(notice.workspace)}")
    if notice.summary is not None:
        lines.append(f"Arguments: {plain(notice.summary)}")
    return lines


LIMIT_S = 10.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_SHAPES: Mapping[str, Callable[[Notice], dict[str, Any]]] = {
    "webhook": as_json,
    "slack": slack,
    "teams": teams,
}


class NotSent(Exception):
    """The reason of a failure, without secrets. `is_final`: a retry would fail, too."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        super().__init__(problem)
        self.is_final = is_final


async def send(notice: Notice, target: NoticeTarget, launcher: Callable[[], Launcher]) -> None:
    """Send a notice. Raises `NotSent`."""
    try:
        async with asyncio.timeout(LIMIT_S):
            if target.kind == "command":
                await _run(notice, target.command, launcher())
            elif target.kind == "email":
                await asyncio.to_thread(_mail, notice, target)
            else:
                await _post(_SHAPES[target.kind](notice), target)
    except TimeoutError:
        raise NotSent(f"timed out after {LIMIT_S:g} s") from None


async def _post(body: dict[str, Any], target: NoticeTarget) -> None:
    url = httpx2.URL(target.url or _secret(target.url_env))
    if url.scheme not in ("http", "https") or not url.host:
        raise NotSent("has no valid address", is_final=True)
    headers = {"content-type": "application/json"}
    if target.token_env is not None:
        if url.scheme == "http" and not is_loopback(url.host):
            raise NotSent("a token needs https, or an address on this machine", is_final=True)
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
    message = email(notice, target.sender, target.to)
    try:
        _deliver(message, target)
    except smtplib.SMTPResponseException as error:
        final = 500 <= error.smtp_code < 600
        raise NotSent(f"the mail server answered {error.smtp_code}", is_final=final) from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotSent(f"the mail server failed ({type(error).__name__})") from None


def _deliver(message: EmailMessage, target: NoticeTarget) -> None:
    assert target.host is not None
    port = target.port or _PORTS[target.security]
    context = ssl.create_default_context()
    name = socket.gethostname()  # otherwise smtplib looks up its own name in the network
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
    """Run the user's command, without a sandbox, with the notice on stdin. When the command ends,
    its other processes are ended.
    """
    theirs, ours = os.pipe()
    try:
        os.write(ours, msgspec.json.encode(as_json(notice)) + b"\n")  # fits into the pipe
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
        raise NotSent(f"exited with {ended.code if ended.code is not None else 'a signal'}")


def _secret(variable: str | None) -> str:
    value = os.environ.get(variable or "", "")
    if not value:
        raise NotSent(f"the variable {variable} is empty", is_final=True)
    return value


KIND = "notice"
ATTEMPTS = 4
"""Maximum number of attempts per target."""
CLAIM_S = 120.0
"""Validity of a claim: longer than all attempts."""
_FORGET_S = 3_600.0
_MOST_AT_ONCE = 20
_log = logging.getLogger("callgate.features.reporting.notifications")


class WaitingQuestion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tool: str
    effect: str
    session: str
    workspace: str
    summary: str
    """Summary of the arguments, redacted."""
    asked_at: float
    expires_at: float


class _Claim(msgspec.Struct, frozen=True):
    until: float
    done: bool = False


class Notices:
    def __init__(self, launcher: Callable[[], Launcher], link: Callable[[], str | None]) -> None:
        """`link` returns the address of the inbox."""
        self._launcher = launcher
        self._link = link
        self._tasks = TaskSet()
        self._sending = 0

    async def look(
        self, store: Store, questions: Iterable[WaitingQuestion], settings: NotifyTable
    ) -> None:
        """Start the delivery of due notices, without a wait for the targets. Raises
        `StoreError`.
        """
        now = time.time()
        waiting = list(questions)
        due = [
            each
            for each in waiting
            if now - each.asked_at >= settings.after_seconds and each.expires_at > now
        ]
        entries = {entry.name: entry for entry in await store.entries(KIND)}
        for question in due:
            if self._sending >= _MOST_AT_ONCE:
                break
            entry = entries.get(question.id)
            claim = None if entry is None else _read(entry.value)
            if claim is not None and (claim.done or claim.until > now):
                continue
            version = 0 if entry is None else entry.version
            (receipt,) = await store.commit(_put(question.id, _Claim(now + CLAIM_S), version))
            if receipt.applied and receipt.entry is not None:
                self._sending += 1
                notice = self._notice(question, settings, now)
                version = receipt.entry.version
                self._tasks.start(self._deliver(store, notice, settings, version))
        await _forget(store, entries, {each.id for each in waiting}, now)

    def _notice(self, question: WaitingQuestion, settings: NotifyTable, now: float) -> Notice:
        link = settings.link or self._link()
        return Notice(
            question=question.id,
            tool=question.tool,
            effect=question.effect,
            session=question.session,
            waited_s=round(now - question.asked_at),
            expires_in_s=round(question.expires_at - now),
            link=None if link is None else f"{link.rstrip('/')}/#/inbox",
            summary=question.summary if settings.details else None,
            workspace=question.workspace if settings.details else None,
        )

    async def _deliver(
        self, store: Store, notice: Notice, settings: NotifyTable, version: int
    ) -> None:
        try:
            await deliver(notice, settings, self._launcher)
            done = _Claim(time.time(), done=True)
            await store.commit(_put(notice.question, done, version))
        except Exception as error:  # the store failed: another process repeats the notice
            _log.warning("a sent notice could not be stored: %s", error)
        finally:
            self._sending -= 1

    def close(self) -> None:
        """Stop the deliveries; other processes take over after the claims expire."""
        self._tasks.cancel()


async def deliver(
    notice: Notice,
    settings: NotifyTable,
    launcher: Callable[[], Launcher],
    attempts: int = ATTEMPTS,
) -> dict[str, str | None]:
    """Send a notice to every target concurrently. Return the problem of each target, or None."""
    problems = await asyncio.gather(
        *(_try(notice, settings, name, launcher, attempts) for name in settings.targets)
    )
    return dict(zip(settings.targets, problems, strict=True))


async def _try(
    notice: Notice,
    settings: NotifyTable,
    name: str,
    launcher: Callable[[], Launcher],
    attempts: int,
) -> str | None:
    for attempt in range(1, attempts + 1):
        try:
            await send(notice, settings.targets[name], launcher)
            return None
        except NotSent as error:
            problem = str(error)
            if error.is_final or attempt == attempts:
                break
        except Exception:
            _log.exception("the notice to %s failed with an internal error", name)
            problem = "failed with an internal error"
            break
        await asyncio.sleep(back_off(attempt, random.random()))  # noqa: S311
    _log.warning("the notice of question %s was not sent to %s: %s", notice.question, name, problem)
    return problem


def _put(question: str, claim: _Claim, expected: int) -> PutEntry:
    value = msgspec.json.encode(claim).decode()
    return PutEntry(kind=KIND, name=question, value=value, expected=expected)


def _read(value: str) -> _Claim:
    try:
        return msgspec.json.decode(value, type=_Claim)
    except (ValueError, RecursionError):  # written by another version, which handles it
        return _Claim(0.0, done=True)


async def _forget(
    store: Store, entries: Mapping[str, SharedEntry], open_ids: set[str], now: float
) -> None:
    """Drop the claims of questions that closed long ago."""
    for name, entry in entries.items():
        if name not in open_ids and _read(entry.value).until < now - _FORGET_S:
            await store.commit(DropEntry(kind=KIND, name=name, expected=entry.version))


LOOK_EVERY_S = 1.0


class QuestionNotices(Service):
    def __init__(self, wired: Wired, link: Callable[[], str | None]) -> None:
        """`link` returns the address of the dashboard, if there is one."""
        self._wired = wired
        self._link = link
        self._notices: Notices | None = None

    def start(self, closing: AsyncExitStack) -> None:
        closing.callback(start_task(self.run()).cancel)

    async def run(self) -> None:
        """Check in an endless loop. A failure of the store is logged, and the next check tries
        again.
        """
        problem = ""
        try:
            while True:
                try:
                    await self._look()
                    problem = ""
                except StoreError as error:
                    if str(error) != problem:
                        _log.warning("open questions cannot be read: %s", error)
                    problem = str(error)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if self._notices is not None:
                self._notices.close()

    async def _look(self) -> None:
        settings = self._wired.settings.of(ReportingSettings).notify
        if not settings.targets or self._wired.policies.problem is not None:
            return
        if self._notices is None:
            self._notices = Notices(self._wired.bare_launcher, self._link)
        questions = map(_waiting, await self._wired.runtime.permission.open_confirmations())
        await self._notices.look(await self._wired.runtime.sessions.store(), questions, settings)


def _waiting(question: Confirmation) -> WaitingQuestion:

    return WaitingQuestion(
        id=question.id,
        tool=question.tool,
        effect=question.side_effects,
        session=question.session_id,
        workspace=question.workspace,
        summary=question.input_summary,
        asked_at=made_at(question.event_id),
        expires_at=question.expires_at,
    )
