"""When a question has waited long enough, one notice of it goes to every target, from one process.

    open questions --old enough--> claim in the store --first--> send, a few times --> done
                                        |
                                        +-- another process has it, or it was done

A claim ends after a while, so that the notice of a process that died is sent by another. Whatever a
target does, the question and its call are not held up: this is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from callgate.config.schema import NotifyTable
from callgate.core.commands import Launcher
from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stored import SharedEntry
from callgate.core.stores import Store
from callgate.core.task_sets import TaskSet
from callgate.http_client.retries import back_off
from callgate.notify.messages import Notice
from callgate.notify.senders import NotSent, send

KIND = "notice"
ATTEMPTS = 4
"""With each target."""
CLAIM_S = 120.0
"""Longer than all attempts take."""
_FORGET_S = 3_600.0
_MOST_AT_ONCE = 20
_log = logging.getLogger("callgate.notify")


class WaitingQuestion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tool: str
    effect: str
    session: str
    workspace: str
    summary: str
    """Redacted."""
    asked_at: float
    expires_at: float


class _Claim(msgspec.Struct, frozen=True):
    until: float
    done: bool = False


class Notices:
    def __init__(self, launcher: Callable[[], Launcher], link: Callable[[], str | None]) -> None:
        """`link`: where the inbox is."""
        self._launcher = launcher
        self._link = link
        self._tasks = TaskSet()
        self._sending = 0

    async def look(
        self, store: Store, questions: Iterable[WaitingQuestion], settings: NotifyTable
    ) -> None:
        """Send what is due; returns without a wait for the targets. `StoreError`."""
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
        except Exception as error:  # a store that is gone meanwhile: others look after it
            _log.warning("that a notice was sent is not kept: %s", error)
        finally:
            self._sending -= 1

    def close(self) -> None:
        """Leave what is being sent to others, whom its claims will let."""
        self._tasks.cancel()


async def deliver(
    notice: Notice,
    settings: NotifyTable,
    launcher: Callable[[], Launcher],
    attempts: int = ATTEMPTS,
) -> dict[str, str | None]:
    """Send it to every target, side by side; what went wrong with each, if anything."""
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
            _log.exception("the notice to %s met a defect", name)
            problem = "met a defect"
            break
        await asyncio.sleep(back_off(attempt, random.random()))  # noqa: S311
    _log.warning("no notice of question %s to %s: %s", notice.question, name, problem)
    return problem


def _put(question: str, claim: _Claim, expected: int) -> PutEntry:
    value = msgspec.json.encode(claim).decode()
    return PutEntry(kind=KIND, name=question, value=value, expected=expected)


def _read(value: str) -> _Claim:
    try:
        return msgspec.json.decode(value, type=_Claim)
    except (ValueError, RecursionError):  # of another version: it has looked after it
        return _Claim(0.0, done=True)


async def _forget(
    store: Store, entries: Mapping[str, SharedEntry], open_ids: set[str], now: float
) -> None:
    """Drop the claims of questions that are closed for long."""
    for name, entry in entries.items():
        if name not in open_ids and _read(entry.value).until < now - _FORGET_S:
            await store.commit(DropEntry(kind=KIND, name=name, expected=entry.version))
