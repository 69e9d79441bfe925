"""Who answers a question about a call of a model: an option, the person here, or nobody.

A question can be answered from anywhere, and the first answer counts. One that was answered
elsewhere is taken back here, and the line that is typed next belongs to whoever asks next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from callgate.cli.ui import confirmation_prompt
from callgate.cli.ui.confirmation_prompt import asker
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import Tty
from callgate.cli.ui.visible import visible
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.sessions import Session
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.policy.rules import Outcome
from callgate.wiring.runtime import Wired

_NOBODY = "Nobody is there to be asked, so it is refused. Do not try it again in another way."


_OPTION = "--allow"


def here(by: str) -> frozenset[str]:
    """By whom a question was answered, where it was answered in this command."""
    return frozenset({by, _OPTION, confirmation_prompt.BY})


class Answers:
    """A confirmer for the sessions of one command: give it to `Runtime.attach`."""

    def __init__(
        self,
        wired: Wired,
        session: Callable[[], Session],
        tty: Tty | None,
        *,
        by: str,
        allowed: Collection[str] = (),
        quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """
        Args:
            session: the one that is at work now.
            tty: where the person is; None where there is nobody.
            by: the command, for the record.
            allowed: tools about which the answer is yes.
            quiet: keeps the terminal free of other texts while a question stands there.
        """
        self._wired = wired
        self._session = session
        self._tty = tty
        self._by = by
        self._allowed = frozenset(allowed)
        self._quiet = quiet
        self._one = asyncio.Lock()
        """One question at a time."""
        self._reported: set[str] = set()

    async def __call__(self, question: Confirmation) -> Answer:
        if question.tool in self._allowed and not question.always_ask:
            return Answer(decision=Outcome.ALLOW, by=_OPTION)
        if self._tty is None:
            self._report_refusal(question.tool)
            return Answer(decision=Outcome.DENY, reason=_NOBODY, by=self._by)
        call = ToolCall(
            tool=question.tool,
            arguments=dict(question.arguments),
            session=self._session(),
            caller=CallerKind.AGENT,
        )
        async with self._one:
            with self._quiet():
                return await asker(self._wired, call, self._tty)(question)

    def _report_refusal(self, tool: str) -> None:
        if tool in self._reported:
            return
        self._reported.add(tool)
        name = visible(tool)
        say(f"callgate: {name} needs a yes, and nobody can be asked: refused")
        say(f"hint: --allow {name}, --mode write, or a rule in settings.toml allows it.")
