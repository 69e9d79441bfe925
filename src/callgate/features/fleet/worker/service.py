"""The service of a remote worker: frames in, answers and events out, over one connection.

    init, get_tool_schemas           its description and tools
    locate_call, preview_call        read-only
    execute_tool, cancel             one call, within the workspace boundary (`calls`)
    list_changes                     calls that can be undone

The end of a connection ends its calls, because their results could not be reported.

A worker connects to a server's URL, encrypted unless the server is on the same machine.
"""

from __future__ import annotations

import ipaddress
import logging
import platform
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from callgate.core.errors import GENERIC_FAILURE, ToolError, ToolExecutionError
from callgate.core.events import OUTPUT_DELTA, PROGRESS
from callgate.core.tasks import Backpressure, TaskSet, dropped_events
from callgate.core.version import __version__
from callgate.dispatch.foreign_code import log_failure
from callgate.dispatch.running import RunningCall
from callgate.features.fleet.worker.calls import WorkerCalls
from callgate.protocol.host_v1 import frames, values
from callgate.protocol.host_v1.frames import (
    Emitted,
    Failed,
    Object,
    Passed,
    Request,
    Result,
    Returned,
)
from callgate.protocol.host_v1.lines import Fault
from callgate.protocol.host_v1.runtime import HostWire
from callgate.protocol.host_v1.workers import (
    OF_WORKER,
    Description,
    ListChanges,
    LocateCall,
    PreviewCall,
    RunTool,
)
from callgate.protocol.strict_json import Unsendable

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
        """
        Args:
            send: Takes a frame, and whether it may be dropped under load. False if it was dropped.
            joined: Called when the server accepts the worker for calls.
            backpressure: The backpressure of the connection.
        """
        self._calls = calls
        self._workspaces = workspaces
        self._slots = slots
        self._send = send
        self._joined = joined
        self._backpressure = backpressure
        self._wire = HostWire(OF_WORKER)
        self._running: dict[str, RunningCall] = {}
        """Running calls by request id."""
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
                    _log.debug("ignored a frame")

    async def close(self) -> None:
        """End all calls of the connection."""
        await self._calls.stop_all(list(self._running.values()))
        self._tasks.cancel()
        await self._tasks.wait()

    async def _serve(self, request: Request[Any]) -> None:
        answer: Returned | Failed
        try:
            value = await self._value(request.id, request.params)
            answer = Returned(id=request.id, result=Result(value=value))
        except ToolError as error:
            answer = Failed(id=request.id, error=values.to_failure(error))
        except Exception as error:  # the server must get an answer, even after a defect
            log_failure(_log, error, "request %s failed with an internal error", request.method)
            failed = ToolExecutionError(GENERIC_FAILURE, reason="internal")
            answer = Failed(id=request.id, error=values.to_failure(failed))
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
        raise ToolExecutionError("A worker does not support this request.", reason="method")

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
            is_marked = not unmarked or self._emit(id, values.log(dropped_events(unmarked), "warn"))
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
        """Send an event of a call. False if it was dropped, because it is too large or
        under load.
        """
        try:
            data = self._wire.encode(Emitted(id=id, event=event))
        except Unsendable:
            return False
        except ValueError:  # the call was answered: the event is obsolete
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
        return values.progress(payload.get("message"), payload.get("fraction"))
    if event_type == OUTPUT_DELTA:
        return values.output(str(payload.get("text", "")), payload.get("stream", "text"))
    return frames.Event(type=event_type, payload=dict(payload))


def _schema(definition: Any) -> Object:
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }


PATH = "/v1/workers/connect"
_SCHEMES = {"https": "wss", "wss": "wss", "http": "ws", "ws": "ws"}


class BadServer(ValueError):
    """A URL that is refused, with the reason and advice as text."""


class ServerAddress(NamedTuple):
    url: str
    """URL of the WebSocket, without its query."""
    encrypted: bool
    local: bool

    def dialled(self, **query: str) -> str:
        return f"{self.url}?{urlencode(query)}"


def read_server(text: str, *, insecure: bool = False) -> ServerAddress:
    """Parse a server's URL, such as `https://callgate.example`. Raises `BadServer`."""
    try:
        split = urlsplit(text)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise BadServer(f"{text!r} is not a URL: {error}") from None
    scheme = _SCHEMES.get(split.scheme)
    if scheme is None or not host or split.query or split.fragment or split.username:
        raise BadServer(f"{text!r} is not a server URL such as https://callgate.example:443")
    local = _is_loopback(host)
    if scheme == "ws" and not local and not insecure:
        raise BadServer(
            f"{text} is not encrypted, so the network could read the token and all data. Use"
            " https://, or --insecure if the network itself is private"
        )
    del port
    path = split.path.rstrip("/") + PATH
    url = urlunsplit((scheme, split.netloc, path, "", ""))
    return ServerAddress(url, scheme == "wss", local)


def tls_context(ca: str | None) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or only the ones in a file. Raises
    `BadServer`.
    """
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise BadServer(f"--ca {ca}: {error}") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
