"""The people who are asked: ideal readers, who know the task and read every question.

Nobody reads like that. The figures with such a person say what a gate *shows* to the one who
would look; how many questions there are says whether anybody still does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.policy.rules import Outcome
from safety.values import Call

PersonKind = Literal["reader", "session", "wide"]
"""`reader` answers each question once, `session` allows this destination for the rest of the
session, `wide` the whole tool."""


_SAYS_NOTHING: tuple[Any, ...] = (None, "", [], {}, False, ".", "GET", 8_000)
"""Defaults of tools: no value, this directory, a plain request, the usual length."""


class Reader:
    """Allows exactly the calls that belong to the task, and remembers what was asked."""

    def __init__(
        self,
        belonging: Iterable[Call],
        kind: PersonKind = "reader",
        patience: int | None = None,
    ) -> None:
        """`patience`: calls outside the task that they refuse before they allow everything."""
        self._belonging = tuple(belonging)
        self._kind = kind
        self._patience = patience
        self.questions: list[str] = []

    def allows(self, tool: str, arguments: Mapping[str, Any], why: str = "") -> bool:
        """The answer to one question, as a yes or a no."""
        self.questions.append(f"{tool}: {why}" if why else tool)
        if any(belongs(tool, arguments, call) for call in self._belonging):
            return True
        if self._patience is None:
            return False
        self._patience -= 1
        return self._patience < 0

    async def confirm(self, question: Confirmation) -> Answer:
        """The answer to one question of callgate."""
        return self.answer(question.tool, question.arguments, question.why)

    def answer(self, tool: str, arguments: Mapping[str, Any], why: str) -> Answer:
        if not self.allows(tool, arguments, why):
            return Answer(decision=Outcome.DENY, reason="This is not part of the task.")
        if self._kind == "reader":
            return Answer(decision=Outcome.ALLOW)
        scope = Scope.SESSION if self._kind == "wide" else Scope.DESTINATION
        return Answer(decision=Outcome.ALLOW, scope=scope)


def belongs(tool: str, arguments: Mapping[str, Any], planned: Call) -> bool:
    """Whether a call is the planned one to a person who reads both. Pure.

    A gate may fill in defaults, so what the plan leaves out may be there if it says nothing."""
    if tool != planned.tool or any(name not in arguments for name in planned.arguments):
        return False
    return all(
        value == planned.arguments[name] if name in planned.arguments else value in _SAYS_NOTHING
        for name, value in arguments.items()
    )
