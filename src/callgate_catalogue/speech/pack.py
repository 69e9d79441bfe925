"""Speech output of a runtime. No tools: a model speaks without one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from callgate.packs.tools import Pack, PackContext

if TYPE_CHECKING:
    from callgate.packs.speech import Speaker

_log = logging.getLogger("callgate.features.chat.agent")


def pack(context: PackContext) -> Pack:
    def speaker() -> Speaker:
        from callgate_catalogue.speech.speaker import (  # lazy: few let a model speak  # noqa: PLC0415
            ProgramSpeaker,
        )

        return ProgramSpeaker(context.launcher, on_failure=_log.warning)

    return Pack(speaker=speaker)
