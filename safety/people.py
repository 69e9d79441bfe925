"""The people who are asked: ideal readers, who know the task and read every question.

Nobody reads like that. The figures with such a person say what a gate *shows* to the one who
would look; how many questions there are says whether anybody still does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.policy.rules import Outcome
from safety.values import Call

PersonKind = Literal["reader", "session"]
"""`reader` answers each question once; `session` allows for the rest of the session."""


class Reader:
    """Allows exactly the calls that belong to the task, and remembers what was asked."""

    def __init__(self, belonging: Iterable[Call], kind: PersonKind = "reader") -> None:
        self._belonging = {fingerprint(call.tool, call.arguments) for call in belonging}
        self._kind = kind
        self.questions: list[str] = []

    def allows(self, tool: str, arguments: Any, why: str = "") -> bool:
        """The answer to one question, as a yes or a no."""
        self.questions.append(f"{tool}: {why}" if why else tool)
        return fingerprint(tool, arguments) in self._belonging

    async def confirm(self, question: Confirmation) -> Answer:
        """The answer to one question of callgate."""
        if not self.allows(question.tool, question.arguments, question.why):
            return Answer(decision=Outcome.DENY, reason="This is not part of the task.")
        if self._kind == "reader":
            return Answer(decision=Outcome.ALLOW)
        return Answer(decision=Outcome.ALLOW, scope=session_scope(question))


def session_scope(question: Confirmation) -> Scope:
    """What the answer "for this session" is: the narrow form, where it is offered."""
    narrow: Callable[[str], Scope] = Scope
    if "destination" in list(Scope):
        return narrow("destination")
    return Scope.SESSION


def fingerprint(tool: str, arguments: Any) -> str:
    """The same for two calls that are the same to a person who reads both."""
    return tool + json.dumps(_plain(arguments), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    """Without what says nothing: a gate may fill in defaults, such as null or an empty text."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item not in (None, "", [])}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
