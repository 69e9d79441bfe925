"""What the tools of every framework do in these tests, and who is asked about them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Protocol

from callgate import Answer, Confirmation, Gate

EFFECTS = {"look": "read", "send_mail": "network", "fail": "read", "wait": "read"}
PROMPT = "write to ann@example.org"


class World:
    """Four functions, which note that they ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    def look(self, to: str) -> str:
        """Look somebody up."""
        self.ran.append(("look", to))
        return f"found {to}"

    def send_mail(self, to: str, subject: str | None = None) -> str:
        """Send a mail."""
        self.ran.append(("send_mail", to, subject))
        return f"sent to {to}"

    def fail(self, to: str) -> str:
        """Fail."""
        self.ran.append(("fail", to))
        raise LookupError(f"no such person: {to}")

    async def wait(self, to: str) -> str:
        """Wait for ever."""
        self.ran.append(("wait", to))
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"


class Person:
    """Gives one answer to every question."""

    def __init__(self, answer: Answer | bool = True) -> None:
        self.answer = answer
        self.asked: list[Confirmation] = []

    async def __call__(self, confirmation: Confirmation) -> Answer | bool:
        self.asked.append(confirmation)
        return self.answer


class Harness(Protocol):
    """A framework with a scripted model, which calls one tool and ends."""

    shows_errors: bool
    """Whether its adapter sees that a tool has failed."""

    async def run(
        self, gate: Gate | None, world: World, tool: str, arguments: dict[str, Any], *, stream: bool = False
    ) -> list[str]:
        """What the model was told of its call. Without a gate: the framework alone."""
        ...


def records(home: Path) -> list[dict[str, Any]]:
    path = home / "audit.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for line in lines if (record := json.loads(line)).get("tool")]
