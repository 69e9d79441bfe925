"""Updates of an agent on their way to the editor.

    update of a card with an open question   waits until the question is answered
    update of one of our own cards           is dropped
    terminals of ours in it                  become text

The person sees the card as the question has made it until the answer has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TextOf = Callable[[str, str], str | None]
"""What a terminal of ours has written, by its id, for the card of a tool call; None for others."""

_MOST_WAITING = 200
"""Updates of one card that wait; of more, the last ones count."""

_log = logging.getLogger("callgate.acp")


class CardUpdates:
    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        """`send` takes the parameters of `session/update`."""
        self._send = send
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        """By the cards that have an open question."""
        self._own: set[str] = set()

    def has_question(self, card: str) -> bool:
        return card in self._waiting

    @contextmanager
    def question(self, card: str) -> Iterator[None]:
        """Let the updates of a card wait."""
        self._waiting[card] = []
        try:
            yield
        finally:
            for params in self._waiting.pop(card):
                self._send(params)

    def add_own(self, card: str) -> None:
        """The agent does not change this card: it is ours."""
        self._own.add(card)

    def pass_on(self, params: dict[str, Any]) -> None:
        """Send an update of the agent, now or when the question on its card is answered."""
        card = card_of(params)
        if card in self._own:
            _log.warning("dropped: the agent changes a card of callgate")
            return
        waiting = None if card is None else self._waiting.get(card)
        if waiting is None:
            self._send(params)
            return
        waiting.append(params)
        if len(waiting) > _MOST_WAITING:
            del waiting[1]  # the first one may announce the card


def card_of(params: dict[str, Any]) -> str | None:
    update = params.get("update")
    card = update.get("toolCallId") if isinstance(update, dict) else None
    return card if isinstance(card, str) else None


def with_texts(params: dict[str, Any], text_of: TextOf) -> dict[str, Any]:
    """The parameters of `session/update`, the same object where nothing is replaced. Pure."""
    update = params.get("update")
    content = update.get("content") if isinstance(update, dict) else None
    if not isinstance(update, dict) or not isinstance(content, list):
        return params
    card = str(update.get("toolCallId", ""))
    replaced = [_shown(each, card, text_of) for each in content]
    if all(new is old for new, old in zip(replaced, content, strict=True)):
        return params
    return {**params, "update": {**update, "content": replaced}}


def _shown(block: Any, card: str, text_of: TextOf) -> Any:
    if not isinstance(block, dict) or block.get("type") != "terminal":
        return block
    text = text_of(str(block.get("terminalId", "")), card)
    if text is None:
        return block
    return {"type": "content", "content": {"type": "text", "text": text}}
