"""The events of a turn, without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.core.events import (
    CHAT_DELTA,
    COMPACTED,
    DIAGNOSED,
    LLM_CALLED,
    LLM_COMPLETED,
    LLM_FAILED,
    LLM_RETRYING,
    NOTICE,
    Actor,
)
from callgate.core.models import Model, Reply, Retrying, Usage
from callgate.core.sessions import Session
from callgate.redaction.texts import redact
from callgate.sessions.conversations import Conversations

MOST_SAID = 20
"""Complaints about one reply that are told of."""


class Telling:
    """Each method makes one event and gives its id."""

    def __init__(self, conversations: Conversations, session: Session) -> None:
        self._conversations = conversations
        self._session = session

    def tell(self, event_type: str, payload: Mapping[str, Any], parent: str | None = None) -> str:
        shown = {key: redact(v) if isinstance(v, str) else v for key, v in payload.items()}
        actor: Actor = "system" if event_type == NOTICE else "agent"
        keep = event_type != CHAT_DELTA
        emit = self._conversations.emit
        return emit(self._session, event_type, actor, shown, keep=keep, parent=parent)

    def called(self, model: Model, tools: int) -> str:
        return self.tell(LLM_CALLED, {"model": model.name, "tools": tools})

    def completed(self, reply: Reply, model: Model, took_s: float, parent: str) -> str:
        payload = {
            "model": reply.model or model.name,
            "stop_reason": reply.stop,
            "latency_ms": round(took_s * 1e3, 1),
            **_counted(reply.usage),
        }
        if model.price is not None:
            payload["cost_usd"] = model.price.of(reply.usage)
        return self.tell(LLM_COMPLETED, payload, parent)

    def failed(self, kind: str, message: str, parent: str) -> str:
        return self.tell(LLM_FAILED, {"kind": kind, "message": message}, parent)

    def retrying(self, again: Retrying, parent: str) -> str:
        payload = {"kind": again.kind, "message": again.message, "wait_s": again.wait_s}
        return self.tell(LLM_RETRYING, payload, parent)

    def compacted(self, messages: int, usage: Usage) -> str:
        return self.tell(COMPACTED, {"messages": messages, **_counted(usage)})

    def diagnosed(self, complaints: Sequence[str], diagnostics: Sequence[str]) -> str:
        """They repeat a little of what the model wrote, so they may hold a secret."""
        payload = {
            "errors": list(map(redact, complaints[:MOST_SAID])),
            "diagnostics": list(map(redact, diagnostics[:MOST_SAID])),
        }
        return self.tell(DIAGNOSED, payload)

    def notice(self, stop: str, message: str) -> str:
        return self.tell(NOTICE, {"stop": stop, "message": message})


def _counted(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
    }
