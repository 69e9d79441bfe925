"""Checks for questions that have waited too long, if the settings of the instance have a target."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from callgate.core.ids import made_at
from callgate.core.stores import StoreError
from callgate.core.tasks import start_task
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.features.reporting.settings import ReportingSettings
from callgate.instance.instance import Service
from callgate.instance.wiring.runtime import Wired

if TYPE_CHECKING:
    from callgate.features.reporting.notices import Notices, WaitingQuestion

LOOK_EVERY_S = 1.0
_log = logging.getLogger("callgate.features.reporting.notifications")


class QuestionNotices(Service):
    def __init__(self, wired: Wired, link: Callable[[], str | None]) -> None:
        """`link` returns the address of the dashboard, if there is one."""
        self._wired = wired
        self._link = link
        self._notices: Notices | None = None

    def start(self, closing: AsyncExitStack) -> None:
        closing.callback(start_task(self.run()).cancel)

    async def run(self) -> None:
        """Check in an endless loop. A failure of the store is logged, and the next check tries
        again.
        """
        problem = ""
        try:
            while True:
                try:
                    await self._look()
                    problem = ""
                except StoreError as error:
                    if str(error) != problem:
                        _log.warning("open questions cannot be read: %s", error)
                    problem = str(error)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if self._notices is not None:
                self._notices.close()

    async def _look(self) -> None:
        settings = self._wired.settings.of(ReportingSettings).notify
        if not settings.targets or self._wired.policies.problem is not None:
            return
        if self._notices is None:
            from callgate.features.reporting.notices import (  # noqa: PLC0415
                # lazy: most settings name no target
                Notices,
            )

            self._notices = Notices(self._wired.bare_launcher, self._link)
        questions = map(_waiting, await self._wired.runtime.permission.open_confirmations())
        await self._notices.look(await self._wired.runtime.sessions.store(), questions, settings)


def _waiting(question: Confirmation) -> WaitingQuestion:
    from callgate.features.reporting.notices import (  # noqa: PLC0415
        # lazy: loaded with the first target
        WaitingQuestion,
    )

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
