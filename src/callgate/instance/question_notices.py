"""Looks for questions that have waited too long, where the settings of an instance want it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.core.ids import made_at
from callgate.core.stores import StoreError
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # loaded where the settings name a target
    from callgate.notify.notices import Notices, WaitingQuestion

LOOK_EVERY_S = 1.0
_log = logging.getLogger("callgate.notify")


class QuestionNotices:
    def __init__(self, wired: Wired, link: Callable[[], str | None]) -> None:
        """`link`: where the dashboard is, if there is one."""
        self._wired = wired
        self._link = link
        self._notices: Notices | None = None

    async def run(self) -> None:
        """Never ends. Whatever is wrong with the store is for the next look."""
        problem = ""
        try:
            while True:
                try:
                    await self._look()
                    problem = ""
                except StoreError as error:
                    if str(error) != problem:
                        _log.warning("no questions are looked for: %s", error)
                    problem = str(error)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if self._notices is not None:
                self._notices.close()

    async def _look(self) -> None:
        settings = self._wired.settings.notify
        if not settings.targets or self._wired.policies.problem is not None:
            return
        if self._notices is None:
            from callgate.notify.notices import Notices  # lazy: most settings name no target  # noqa: PLC0415

            self._notices = Notices(self._wired.bare_launcher, self._link)
        questions = map(_waiting, await self._wired.runtime.open_confirmations())
        await self._notices.look(await self._wired.runtime.store(), questions, settings)


def _waiting(question: Confirmation) -> WaitingQuestion:
    from callgate.notify.notices import WaitingQuestion  # lazy: loaded with the first target  # noqa: PLC0415

    return WaitingQuestion(
        id=question.id,
        tool=question.tool,
        effect=question.side_effects,
        session=question.session_id,
        workspace=question.workspace,
        summary=question.input_summary,
        asked_at=made_at(question.event_id),
        expires_at=question.expires_at,
    )
