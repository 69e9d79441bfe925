"""Frames in, answers and events out: what a worker does over one connection.

    init, get_tool_schemas           what it has
    locate_call, preview_call        looks, and changes nothing
    execute_tool, cancel             one call, within the wall (`calls`)
    list_changes                     what can be undone

A connection that ends takes its calls with it: nobody could be told what they did.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callgate.core.errors import GENERIC_FAILURE, ToolError, ToolExecutionError
from callgate.core.events import OUTPUT_DELTA, PROGRESS
from callgate.core.pacing.backpressure import Backpressure, dropped_events
from callgate.core.task_sets import TaskSet
from callgate.core.version import __version__
from callgate.dispatch.failures import log_failure
from callgate.dispatch.running import RunningCall
from callgate.instance.worker.calls import WorkerCalls
from callgate.protocol.host_v1 import failures, frames, parts, values
from callgate.protocol.host_v1.excerpts import Passed
from callgate.protocol.host_v1.frames import Emitted, Failed, Object, Request, Result, Returned
from callgate.protocol.host_v1.host import HostWire
from callgate.protocol.host_v1.requests import Fault
from callgate.protocol.host_v1.workers import (
    OF_WORKER,
    Description,
    ListChanges,
    LocateCall,
    PreviewCall,
    RunTool,
)
from callgate.protocol.ndjson import Unsendable

_log = logging.getLogger("callgate.worker")


class WorkerService:
    """Serves one connection."""

    def __init__(
        self,
        calls: WorkerCalls,
        workspaces: Mapping[str, str],
        slots: int,
        send: Callable[[bytes, bool], bool],
        joined: Callable[[Object], None] = lambda config: None,
        backpressure: Backpressure | None = None,
    ) -> None:
        """`send` takes a frame, and whether it may be dropped where too many wait; False: it was.
        `joined` hears that the server gives it calls from now on. `backpressure` is that of the
        connection."""
        self._calls = calls
        self._workspaces = workspaces
        self._slots = slots
        self._send = send
        self._joined = joined
        self._backpressure = backpressure
        self._wire = HostWire(OF_WORKER)
        self._running: dict[str, RunningCall] = {}
        """By the id of the request."""
        self._tasks = TaskSet(_log, "a request failed")

    def receive(self, data: bytes) -> None:
        """Take one frame."""
        for received in self._wire.receive(data + b"\n"):
            match received:
                case Request():
                    self._tasks.start(self._serve(received))
                case Fault():
                    self._send(self._wire.encode(received), False)
                case Passed() | Returned() | Failed():
                    _log.debug("a frame was passed over")

    async def close(self) -> None:
        """End all that runs for it."""
        await self._calls.stop_all(list(self._running.values()))
        self._tasks.cancel()
        await self._tasks.wait()

    async def _serve(self, request: Request[Any]) -> None:
        answer: Returned | Failed
        try:
            value = await self._value(request.id, request.params)
            answer = Returned(id=request.id, result=Result(value=value))
        except ToolError as error:
            answer = Failed(id=request.id, error=failures.to_failure(error))
        except Exception as error:  # a defect must not leave the server without an answer
            log_failure(_log, error, "request %s met a defect", request.method)
            failed = ToolExecutionError(GENERIC_FAILURE, reason="internal")
            answer = Failed(id=request.id, error=failures.to_failure(failed))
        self._send(self._wire.encode(answer), False)

    async def _value(self, id: str, params: Any) -> Any:
        match params:
            case frames.Init():
                if params.config.get("joined") is True:
                    self._joined(params.config)
                return msgspec.to_builtins(await self._description())
            case frames.GetToolSchemas():
                return [_schema(each.definition) for each in self._calls.registry]
            case RunTool():
                return await self._run(id, params)
            case frames.Cancel():
                return await self._cancel(params.id)
            case PreviewCall():
                found = await self._calls.preview(
                    params.tool_name, params.arguments, params.context
                )
                return None if found is None else msgspec.to_builtins(found)
            case LocateCall():
                located = await self._calls.locate(
                    params.tool_name, params.arguments, params.context
                )
                return msgspec.to_builtins(located)
            case ListChanges():
                return self._calls.changes(params.session_id)
        raise ToolExecutionError("A worker does not do this.", reason="method")

    async def _description(self) -> Description:
        sandbox = self._calls.sandbox
        await sandbox.ready()
        profile = sandbox.surroundings.profile
        system, python = platform.system(), platform.python_version()
        return Description(
            version=__version__,
            platform=f"{system} {platform.release()}, Python {python}",
            workspaces=sorted(self._workspaces),
            slots=self._slots,
            sandbox="off" if profile is None else profile.value,
        )

    async def _run(self, id: str, params: RunTool) -> Object:
        dropped = unmarked = 0

        def report(event_type: str, payload: Mapping[str, Any]) -> None:
            nonlocal dropped, unmarked
            is_marked = not unmarked or self._emit(id, parts.log(dropped_events(unmarked), "warn"))
            if is_marked:
                unmarked = 0
            if not is_marked or not self._emit(id, _event(event_type, payload)):
                dropped += 1
                unmarked += 1

        def started(running: RunningCall) -> None:
            self._running[id] = running

        try:
            output = await self._calls.run(
                params.tool_name,
                params.arguments,
                params.context,
                report,
                started,
                self._backpressure,
            )
        finally:
            self._running.pop(id, None)
        if dropped:
            others = output.metadata.get("diagnostics") or ()
            diagnostics = [*others, dropped_events(dropped)]
            output.metadata = {**output.metadata, "diagnostics": diagnostics}
        return values.to_value(output)

    def _emit(self, id: str, event: frames.Event) -> bool:
        """Send an event of a call. False: it was dropped, because it is too large or too late."""
        try:
            data = self._wire.encode(Emitted(id=id, event=event))
        except Unsendable:
            return False
        except ValueError:  # the call was answered: nobody misses it
            return True
        return self._send(data, True)

    async def _cancel(self, id: str) -> bool:
        running = self._running.get(id)
        if running is None:
            return False
        await self._calls.cancel(running)
        return True


def _event(event_type: str, payload: Mapping[str, Any]) -> frames.Event:
    if event_type == PROGRESS:
        return parts.progress(payload.get("message"), payload.get("fraction"))
    if event_type == OUTPUT_DELTA:
        return parts.output(str(payload.get("text", "")), payload.get("stream", "text"))
    return frames.Event(type=event_type, payload=dict(payload))


def _schema(definition: Any) -> Object:
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }
