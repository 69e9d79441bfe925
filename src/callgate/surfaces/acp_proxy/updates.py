"""Updates of an agent as the editor may see them: with text in place of terminals of ours. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TextOf = Callable[[str, str], str | None]
"""What a terminal of ours has written, by its id, for the card of a tool call; None for others."""


def with_texts(params: dict[str, Any], text_of: TextOf) -> dict[str, Any]:
    """The parameters of `session/update`, the same object where nothing is replaced."""
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
