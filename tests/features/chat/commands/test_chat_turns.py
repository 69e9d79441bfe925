"""Ctrl-C in the moment in which a turn of a chat starts."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from callgate.features.chat.commands.chat import Chat


class Background:
    """Runs nothing; Ctrl-C comes while a turn is being started."""

    def __init__(self, interrupts: Any) -> None:
        self.loop = SimpleNamespace(call_soon_threadsafe=lambda function, *given: function(*given))
        self._interrupts = interrupts

    def start(self, work: Any) -> Future[None]:
        work.close()
        if self._interrupts.instead is None:
            raise KeyboardInterrupt
        self._interrupts.instead()
        return Future()

    def wait_for(self, turn: Future[None]) -> None:
        return None


async def _work() -> None: ...


def test_ctrl_c_while_a_turn_starts_stops_the_turn_and_not_the_chat() -> None:
    interrupts, stopped = SimpleNamespace(instead=None), []
    chat: Any = SimpleNamespace(
        screen=SimpleNamespace(width=None, is_gone=False, settle=lambda: None),
        interrupts=interrupts,
        background=Background(interrupts),
        _stop=stopped.append,
    )
    Chat._turn(chat, _work())
    assert (len(stopped), interrupts.instead) == (1, None)
