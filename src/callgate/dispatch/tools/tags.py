"""Which tags a session has, and who gives those that it lacks.

    session's own + settings + hosts + its model  =  tags;  a tool is visible iff they hold its own

Tags are words for what a session has (`vision`, `en`), not rights: they hide tools that would be of
no use. Those of our own surfaces begin with `callgate:`, which nobody else can give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from callgate.core.sessions import Session
from callgate.core.tools import ToolDefinition

RESERVED = "callgate:"


class Tags:
    def __init__(self) -> None:
        self._given: dict[str, frozenset[str]] = {}
        """To every session, by who gives them."""
        self._models: dict[str, frozenset[str]] = {}
        self._usual: str | None = None

    def give(self, giver: str, tags: Iterable[str]) -> None:
        """Give tags to every session, in place of those that the same giver gave before."""
        self._given[giver] = _allowed(tags)

    def set_models(self, tags: Mapping[str, Iterable[str]], usual: str | None) -> None:
        """The tags of each model; those of the usual one count where no other is at work."""
        self._models = {name: _allowed(each) for name, each in tags.items()}
        self._usual = usual

    def of(self, session: Session) -> frozenset[str]:
        model = self._usual if session.model is None else session.model
        at_work = frozenset[str]() if model is None else self._models.get(model, frozenset())
        return session.tags.union(at_work, *self._given.values())

    def missing(self, definition: ToolDefinition, session: Session) -> frozenset[str]:
        return definition.required_tags - self.of(session)

    def explain(self, missing: frozenset[str]) -> str | None:
        """What is missing, and who would give it; None where that is nobody's business."""
        if any(tag.startswith(RESERVED) for tag in missing):
            return None
        return "; ".join(self._explain(tag) for tag in sorted(missing))

    def _explain(self, tag: str) -> str:
        models = [f"model {name!r}" for name, tags in self._models.items() if tag in tags]
        givers = " or ".join(models) or "no host, model or setting"
        return f"it needs the tag {tag!r}, which {givers} gives (`tags` in the settings)"


def _allowed(tags: Iterable[str]) -> frozenset[str]:
    return frozenset(tag for tag in tags if not tag.startswith(RESERVED))
