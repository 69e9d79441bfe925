"""Entry of the command line: `callgate call` in its own process, without a terminal.

The process has the real sandbox of the machine, so the cases start no command. Events come from
the store of the home.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from callgate.config.home import Home
from callgate.instance.wiring.runtime import Wired
from tests.features.contract.pipeline.cases import WRITE, Case, only, varied
from tests.features.contract.pipeline.players import Entry
from tests.features.contract.pipeline.scenes import Scene
from tests.kernel.cli.running import callgate

_PLAIN = tuple(
    case
    for case in only("read_file", "write_file", "patch_file", "nothing")
    if not case.stop and case.is_recordable and not case.is_closing and case.answer is not None
)
_SETTLED = tuple(case for case in _PLAIN if case.name.startswith(("allowed", "over", "refused", "path", "protected")))
CLI = (
    *_SETTLED,
    *(case for case in _PLAIN if case.name in ("missing file", "unknown tool", "invalid arguments", "no approver")),
    *varied("--yes", tuple(case for case in _PLAIN if case.name.startswith("approved"))),
    Case(name="refused by mode with --yes", arguments=WRITE, mode="read", variant="--yes"),
)


class CommandLine(Entry):
    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        words = ["call", tool, "--args", json.dumps(arguments), "--json"]
        if self.scene.case.variant:
            words.append(self.scene.case.variant)
        env = {"CALLGATE_HOME": str(self.scene.home)}
        ran = await asyncio.to_thread(callgate, *words, cwd=self.scene.work, env=env)
        return {"code": ran.code, "out": ran.answer if ran.out else None, "err": ran.err}


@asynccontextmanager
async def command_line(scene: Scene) -> AsyncIterator[Entry]:
    wired = Wired(Home(str(scene.home)), audit=False)
    try:
        yield CommandLine(scene, wired)
        store = await wired.runtime.sessions.store()
        for session in dict.fromkeys(record["session"] for record in scene.records()):
            scene.events += await store.read_events(session)
    finally:
        await wired.close()
