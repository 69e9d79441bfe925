"""Whose a thought is: a provider takes back its own and refuses those of others.

Anthropic's signatures are kept as they are. Those of the other dialects say what they are:

    responses:ID CONTENT     an item of OpenAI responses, and its encrypted content
    chat:FIELD               the field of a chat message in which a server sent it
"""

from __future__ import annotations

_RESPONSES = "responses:"
_CHAT = "chat:"

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields of a chat message in which servers send what was thought."""


def is_anthropic(signature: str | None) -> bool:
    return bool(signature) and not str(signature).startswith((_RESPONSES, _CHAT))


def of_item(id: str, encrypted: str) -> str:
    return f"{_RESPONSES}{id} {encrypted}"


def item(signature: str | None) -> tuple[str, str] | None:
    """The id of the item and its encrypted content; None for a thought of somebody else."""
    if signature is None or not signature.startswith(_RESPONSES):
        return None
    id, _, encrypted = signature.removeprefix(_RESPONSES).partition(" ")
    return (id, encrypted) if id and encrypted else None


def of_field(field: str) -> str:
    return _CHAT + field


def field(signature: str | None) -> str | None:
    """The field of a chat message; None for a thought of somebody else."""
    if signature is None or not signature.startswith(_CHAT):
        return None
    return signature.removeprefix(_CHAT)
