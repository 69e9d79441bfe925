"""Whatever a model asks for and however an editor behaves, the rules of a turn hold.

    each card      announced once, then pending -> in_progress -> completed | failed, one end
    each prompt    answered once, after all that is told of it
    each message   valid by the published schema

A seed makes a script for the model and a mood for the editor, so what fails can be played again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.clients import EVERYTHING, Client, Refused, connected

FINAL = ("completed", "failed")
_NEXT = {None: ("pending",), "pending": ("in_progress", *FINAL), "in_progress": FINAL}
_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "a.txt"}),
    ("read_file", {"path": "missing", "offset": 2, "limit": 1}),
    ("write_file", {"path": "b.txt", "content": "x\ud83d\ude00"}),
    ("write_file", {"path": ".git/config", "content": "x"}),
    ("patch_file", {"path": "a.txt", "old": "a", "new": "b"}),
    ("list_dir", {}),
    *[("shell", {"command": "echo out; exit 3", "timeout_seconds": 1})] * 4,
    ("shell", {"command": "echo \u202e", "network": True}),
    ("update_plan", {"entries": [{"content": "a step", "status": "pending"}]}),
    ("spawn_agent", {"task": "the same again"}),
    ("no such tool\x1b[2J", {"x": [None, 1.5]}),
    ("read_file", {"wrong": True}),
]


def _script(dice: random.Random) -> str:
    """A model that now says and now does something, for ever."""
    lines = ["repeat = true", f"chunk = {dice.choice([3, 40, 4000])}"]
    for _ in range(dice.randrange(1, 8)):
        lines.append("[[replies]]")
        if dice.random() < 0.5:
            lines.append('thinking = "Hm."')
        if dice.random() < 0.6:
            lines.append('text = "Some words."')
        chosen = [dice.choice(_CALLS) for _ in range(dice.choice([0, 0, 1, 1, 2, 5]))]
        made = [f"{{ tool = {json.dumps(name)}, raw = {json.dumps(json.dumps(given))} }}" for name, given in chosen]
        lines.append(f"calls = [{', '.join(made)}]")
        if dice.random() < 0.1:
            lines.append(f'error = "{dice.choice(["overloaded", "cut", "request"])}"')
    return "\n".join(lines)


class Mood:
    """How an editor answers: mostly well, now and then wrongly, rarely never."""

    def __init__(self, dice: random.Random, client: Client) -> None:
        self._dice = dice
        answers: dict[str, Callable[[], Any]] = {
            "session/request_permission": self._permission,
            "fs/read_text_file": lambda: {"content": "a\nb\n"},
            "fs/write_text_file": lambda: {},
            "terminal/create": lambda: {"terminalId": dice.choice(["t1", "t1", "t2"])},
            "terminal/wait_for_exit": lambda: {"exitCode": dice.choice([0, 1, 2**40])},
            "terminal/output": lambda: {"output": "out\n" * dice.choice([1, 1000]), "truncated": False},
            "terminal/kill": lambda: None,
            "terminal/release": lambda: None,
        }
        for method, good in answers.items():
            client.replies[method] = partial(self._answer, good)

    def _permission(self) -> Any:
        kinds = ["allow_once", "allow_once", "allow_always", "reject_once", "reject_always", "nonsense"]
        chosen = self._dice.choice(kinds)
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    async def _answer(self, good: Callable[[], Any], params: dict[str, Any]) -> Any:
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
        luck = self._dice.random()
        if luck < 0.04:
            await asyncio.get_running_loop().create_future()
        if luck < 0.10:
            raise Refused(self._dice.choice([-32002, -32603, -32800]), "no")
        if luck < 0.14:
            return self._dice.choice([None, [], {"content": 3}, {"outcome": {"outcome": "cancelled"}}])
        return good()


def _broken(said: list[dict[str, Any]], prompts: dict[int, str]) -> Iterator[str]:
    """`prompts`: the session of each, by the id of the request."""
    states: dict[tuple[str, str], str] = {}
    answered: set[int] = set()
    for message in said:
        if message.get("method") == "session/update":
            session, update = message["params"]["sessionId"], message["params"]["update"]
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                card = (session, update["toolCallId"])
                if (update["sessionUpdate"] == "tool_call") != (card not in states):
                    yield f"announced {card}: {update}"
                before, status = states.get(card), update.get("status")
                if before in FINAL:
                    yield f"after its end: {update}"
                if status is not None and status != before and status not in _NEXT[before]:
                    yield f"{before} -> {status}: {update}"
                states[card] = status or before or "pending"
        elif "method" not in message and message["id"] in prompts:
            if message["id"] in answered:
                yield f"answered twice: {message}"
            answered.add(message["id"])
            if message.get("error", {}).get("code") == -32602:
                continue  # refused: another prompt is under way, and the cards are its own
            session = prompts[message["id"]]
            yield from (f"{card} has no end" for card, at in states.items() if card[0] == session and at not in FINAL)
    yield from (f"prompt {id} was not answered" for id in prompts.keys() - answered)


async def _play(seed: int, place: Path) -> None:
    dice = random.Random(seed)
    workspace = place / "project"
    (workspace / ".git").mkdir(parents=True)
    (workspace / "a.txt").write_text("a\n")
    settings = f'mode = "{dice.choice(["ask", "ask", "write", "read"])}"\n[agent]\ncycles = 4\n'
    capabilities = dice.choice([EVERYTHING, EVERYTHING, {}, {"_meta": {"terminal_output": True}}])
    prompts: dict[int, str] = {}
    async with connected(place / "home", settings=settings, script=_script(dice), capabilities=capabilities) as client:
        Mood(dice, client)
        sessions = [await client.new(workspace) for _ in range(2)]
        for _ in range(2):
            active = []
            for session in sessions:
                text = dice.choice(
                    ["go", "go", "go", '/tool read_file {"path": "a.txt"}', '/tool shell {"command": "echo out"}']
                )
                id, prompted = client.start_prompt(session, text)
                prompts[id] = session
                active.append(prompted)
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(dice.choice([0, 0, 0.001, 0.01]))
                _disturb(dice, client, dice.choice(sessions), list(prompts))
            await asyncio.wait(active, timeout=1.0)
            while not all(each.done() for each in active):  # somebody never answers
                for session in sessions:
                    client.tell("session/cancel", sessionId=session)
                await asyncio.wait(active, timeout=1.0)
    assert client.wrong == []
    assert list(_broken(client.said, prompts)) == []


def _disturb(dice: random.Random, client: Client, session: str, prompts: list[int]) -> None:
    luck = dice.random()
    if luck < 0.3:
        client.tell("session/cancel", sessionId=session)
    elif luck < 0.4:
        client.tell("$/cancel_request", requestId=dice.choice(prompts))
    elif luck < 0.7:
        client.start("session/set_mode", sessionId=session, modeId=dice.choice(["none", "read", "ask", "write"]))
    elif luck < 0.8:
        client.start("session/close", sessionId=session)
    elif luck < 0.85:
        client.start("session/delete", sessionId=session)
    else:
        client.start_prompt(session, "another")


@pytest.mark.spec("S2-50")
@pytest.mark.parametrize("seed", range(6))
async def test_the_rules_of_a_turn_hold_whatever_happens(seed: int, tmp_path: Path) -> None:
    await asyncio.wait_for(_play(seed, tmp_path), 60)


@pytest.mark.soak
@pytest.mark.spec("S2-50")
@pytest.mark.parametrize("seed", range(1_000, 1_080))
async def test_the_rules_of_a_turn_hold_whatever_happens_for_long(seed: int, tmp_path: Path) -> None:
    await asyncio.wait_for(_play(seed, tmp_path), 60)
