"""A home with a month of calls, for looking at the dashboard with data of that size.

    python -m benchmarks.month DIRECTORY [CALLS]

The store's and the audit log's own writers make it. A third of the calls belongs to conversations
with titles, model replies and prices, the rest to single calls of several clients. The same
arguments make the same calls, except for the moment at which the month ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from callgate.audit.log import AuditLog
from callgate.audit.records import CallRecord
from callgate.config.home import Home
from callgate.core.events import CALLED, COMPLETED, FAILED, LLM_COMPLETED, Event
from callgate.core.ops import Append, AppendMessages, NewSession, Op
from callgate.core.stored import StoredMessage
from callgate.storage.sqlite.store import SqliteStore

DAYS = 30
CALLS = 10_000
BATCH = 500
"""Operations in a commit."""
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TITLES = (
    "Make the greeting friendlier",
    "Find out why the nightly build fails",
    "Write the release notes for 2.4",
    "Move the parser to its own module",
    "Answer the open review comments",
    "Upgrade the test dependencies",
)
_CLIENTS = ("my-agent/1.2", "claude-code", "codex", "cli", "editor/3")
_MODELS = {"large-model": (3.0, 15.0), "small-model": (0.25, 1.25), "local-model": None}
"""Dollars for a million tokens in and out, where a price is set."""
_TOOLS = (
    ("read_file", "read", '{"path":"src/package/module_%d.py"}'),
    ("search_text", "read", '{"pattern":"def number_%d"}'),
    ("shell", "execute", '{"command":"python3 -m pytest tests/test_%d.py"}'),
    ("write_file", "write", '{"content":"text","path":"docs/page_%d.md"}'),
    ("fetch_url", "network", '{"url":"https://example.org/page/%d"}'),
)
_ENDS = (
    (0.84, None, None, None),
    (0.06, "execution_error", "exit_status", "class_default"),
    (0.04, "permission_denied", "no_confirmer", "class_default"),
    (0.03, "user_denied", "user_denied", "class_default"),
    (0.02, "permission_denied", "rule", "rule (settings.toml:4)"),
    (0.01, "validation_error", None, None),
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the month, before it is written."""

    at: float
    number: int
    session: str
    workspace: str
    client: str
    turn: str | None


def seed(path: str, calls: int = CALLS, until: float | None = None) -> None:
    """Write that many calls, spread over the month before `until`, into a home."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    asyncio.run(_seed(path, calls, time.time() if until is None else until))


async def _seed(path: str, calls: int, until: float) -> None:
    chance = random.Random(calls)
    audit = AuditLog(Home(path).audit)
    async with await SqliteStore.open(path) as store:
        batch: list[Op[Any]] = []
        for op in _ops(chance, audit, calls, until):
            batch.append(op)
            if len(batch) == BATCH:
                await store.commit(*batch)
                batch = []
        await store.commit(*batch)
    audit.close()


def _ops(chance: random.Random, audit: AuditLog, calls: int, until: float) -> Iterator[Op[Any]]:
    moments = sorted(until - chance.random() * DAYS * 86_400 for _ in range(calls))
    number = 0
    while number < calls:
        at = moments[number]
        is_talk = chance.random() < 0.05
        size = min(chance.randrange(4, 20) if is_talk else 1, calls - number)
        session = f"sess_{_ulid(chance, at)}"
        workspace = f"/home/user/projects/project-{chance.randrange(4)}"
        title = chance.choice(_TITLES) if is_talk else None
        yield NewSession(session=session, workspace=workspace, title=title, at=at)
        turn = f"turn_{_ulid(chance, at)}" if is_talk else None
        if turn is not None:
            yield from _conversation(chance, session, turn, title or "", at)
        client = chance.choice(_CLIENTS)
        for place in range(size):
            call = Call(
                at=at + place,
                number=number,
                session=session,
                workspace=workspace,
                client=client,
                turn=turn,
            )
            record, op = _call(chance, call)
            yield op
            audit.append(record)
            number += 1


def _conversation(
    chance: random.Random, session: str, turn: str, title: str, at: float
) -> Iterator[Op[Any]]:
    """A prompt, and the model's reply with its tokens and, where a price is set, its cost."""
    body = {"role": "user", "content": [{"type": "text", "text": title}]}
    message = StoredMessage(id=_ulid(chance, at), turn_id=turn, body=body)
    yield AppendMessages(session=session, messages=(message,), at=at)
    model = chance.choice([*_MODELS])
    tokens = {
        "input_tokens": chance.randrange(2_000, 60_000),
        "output_tokens": chance.randrange(900),
    }
    price = _MODELS[model]
    cost = (
        {}
        if price is None
        else {"cost_usd": sum(a * b for a, b in zip(price, tokens.values(), strict=True)) / 1e6}
    )
    payload = {"model": model, "stop_reason": "end", "latency_ms": 900.0, **tokens, **cost}
    yield Append(
        session=session, events=(_event(chance, session, turn, LLM_COMPLETED, payload, at),)
    )


def _call(chance: random.Random, call: Call) -> tuple[CallRecord, Op[Any]]:
    """The record of a call, and its events."""
    tool, effect, arguments = chance.choice(_TOOLS)
    (_, error, reason, policy) = chance.choices(_ENDS, [each[0] for each in _ENDS])[0]
    id = f"tu_{_ulid(chance, call.at)}"
    was_asked = error == "user_denied" or (effect in ("write", "execute") and error is None)
    ran = round(chance.lognormvariate(4, 1.5), 1)
    took = 0.4 if error in ("permission_denied", "user_denied", "validation_error") else ran
    payload = {"tool_name": tool, "tool_use_id": id, "call_id": id, "side_effects": effect}
    end = {"success": True} if error is None else {"error_class": error, "message": "It failed."}
    called = {**payload, "client": call.client}
    began = _event(chance, call.session, call.turn, CALLED, called, call.at)
    type = COMPLETED if error is None else FAILED
    ended = _event(
        chance, call.session, call.turn, type, {**payload, **end, "latency_ms": took}, call.at
    )
    record = CallRecord(
        id=f"audit_{ended.id}",
        ts=int(call.at * 1000),
        caller="llm" if call.turn else "http",
        principal="local",
        tool=tool,
        decision="deny" if error in ("permission_denied", "user_denied") else "allow",
        call_id=id,
        session=call.session,
        cwd=call.workspace,
        args=arguments % call.number,
        args_hash="a" * 64,
        result="The beginning of the output" if error is None else "It failed.",
        ms=took,
        waited_ms=round(chance.lognormvariate(9, 1)) if was_asked else 0.0,
        confirmation_id=f"conf_{_ulid(chance, call.at)}" if was_asked else None,
        answered_by="http" if was_asked else None,
        error_class=error,
        reason=reason,
        policy=policy,
        side_effects=effect,
        source="builtin",
        turn_id=call.turn,
        client=call.client,
    )
    return record, Append(session=call.session, events=(began, ended))


def _event(
    chance: random.Random, session: str, turn: str | None, type: str, payload: Any, at: float
) -> Event:
    return Event(
        id=_ulid(chance, at),
        timestamp=at,
        session_id=session,
        turn_id=turn,
        type=type,
        actor="agent",
        payload=payload,
    )


def _ulid(chance: random.Random, at: float) -> str:
    """An id of the given moment."""
    number, letters = int(at * 1000), ""
    for _ in range(10):
        number, rest = divmod(number, 32)
        letters = _ALPHABET[rest] + letters
    return letters + "".join(chance.choice(_ALPHABET) for _ in range(16))


if __name__ == "__main__":
    seed(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else CALLS)
