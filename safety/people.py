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

PersonKind = Literal["reader", "session"]
"""`reader` answers each question once; `session` allows for the rest of the session."""


_SAYS_NOTHING: tuple[Any, ...] = (None, "", [], {}, False, ".", "GET", 8_000)
"""Defaults of tools: no value, this directory, a plain request, the usual length."""


class Reader:
    """Allows exactly the calls that belong to the task, and remembers what was asked."""

    def __init__(self, belonging: Iterable[Call], kind: PersonKind = "reader") -> None:
        self._belonging = tuple(belonging)
        self._kind = kind
        self.questions: list[str] = []

    def allows(self, tool: str, arguments: Mapping[str, Any], why: str = "") -> bool:
        """The answer to one question, as a yes or a no."""
        self.questions.append(f"{tool}: {why}" if why else tool)
        return any(belongs(tool, arguments, call) for call in self._belonging)

    async def confirm(self, question: Confirmation) -> Answer:
        """The answer to one question of callgate."""
        if not self.allows(question.tool, question.arguments, question.why):
            return Answer(decision=Outcome.DENY, reason="This is not part of the task.")
        if self._kind == "reader":
            return Answer(decision=Outcome.ALLOW)
        return Answer(decision=Outcome.ALLOW, scope=session_scope())


def session_scope() -> Scope:
    """What the answer "for this session" is: the narrow form, where it is offered."""
    return Scope("destination") if "destination" in list(Scope) else Scope.SESSION


def belongs(tool: str, arguments: Mapping[str, Any], planned: Call) -> bool:
    """Whether a call is the planned one to a person who reads both. Pure.

    A gate may fill in defaults, so what the plan leaves out may be there if it says nothing."""
    if tool != planned.tool or any(name not in arguments for name in planned.arguments):
        return False
    return all(
        value == planned.arguments[name] if name in planned.arguments else value in _SAYS_NOTHING
        for name, value in arguments.items()
    )
