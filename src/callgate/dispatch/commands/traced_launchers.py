"""Commands of a call in a trace: each has the place of the call in its environment."""

from __future__ import annotations

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.commands import Command, Launcher, OnOutput, Running
from callgate.core.text.traces import TraceContext, call_trace


class TracedLauncher(msgspec.Struct, frozen=True):
    """Same interface as the launcher that it is around."""

    around: Launcher
    trace: TraceContext

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        variables = {name.upper(): value for name, value in self.trace.carrier.items()}
        env = {**command.env, **variables}
        return await self.around.start(msgspec.structs.replace(command, env=env), on_output)


def trace_call(
    ratio: float, call: ToolCall, launcher: Launcher | None
) -> tuple[TraceContext, Launcher | None]:
    """The span of a call's run, and what starts its commands in it. `ratio`: see `call_trace`."""
    trace = call_trace(call.id, call.trace, ratio)
    return trace, None if launcher is None else TracedLauncher(launcher, trace)
