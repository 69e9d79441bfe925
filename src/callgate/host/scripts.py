"""Executables as tools: each answers `schema`, `preview NAME` and `run NAME` on its command line.

    schema         prints the JSON schema of its tool, or a list of several
    run NAME       reads the arguments as JSON from stdin, prints the result: JSON, or else text
    preview NAME   reads the same, but only prints one line about the effect of `run`

An exit code other than 0 is a failure, explained by the last lines of stderr. The stderr of a
running script is streamed. The script runs in the sandbox of this host, in a separate process
group, which ends with the call.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from callgate.core.errors import ToolError, ToolExecutionError
from callgate.host.plugins import HostContext, UnknownTool
from callgate.protocol import strict_json
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.frames import Failure, Object, OfHost, Result
from callgate.protocol.host_v1.values import read_schemas, to_failure
from callgate.protocol.strict_json import MAX_LINE, Unsendable
from callgate.sources.functions import ToolLoadError

SCHEMA_S = 10.0
"""Maximum time for a script to print its schema or preview."""
_SHOWN_LINES = 20
_SHOWN = 4096
"""Maximum characters of these lines."""
DRAIN_S = 1.0
"""How long to read output after the end, if a process outside the group holds the pipe."""


class ScriptPlugin:
    methods = ("execute_tool", "format_tool_call_preview", "get_tool_schemas", "init")

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises `ToolLoadError` for a path that cannot be executed."""
        if not paths:
            raise ToolLoadError("--script", None, "which executable?")
        self._paths = [os.path.abspath(path) for path in paths]
        for path in self._paths:
            if not os.path.isfile(path) or not os.access(path, os.X_OK):
                raise ToolLoadError(path, None, "there is no such executable file")
        self._tools: dict[str, str] | None = None
        """Name to path, once the scripts were queried."""

    def is_async(self, params: OfHost) -> bool:
        return not isinstance(params, frames.Init)

    def call(self, params: OfHost, context: HostContext | None) -> Any:
        match params:
            case frames.GetToolSchemas():
                return self._schemas()
            case frames.ExecuteTool():
                assert context is not None
                return self._run(params, context)
            case frames.FormatToolCallPreview():
                return self._preview(params)
        return None

    def result(self, params: OfHost, returned: Any) -> Result:
        if isinstance(params, frames.Init):
            return Result(value={}, state={})
        return Result(value=returned, state=getattr(params, "state", {}))

    def failure(self, error: BaseException) -> Failure:
        if isinstance(error, UnknownTool):
            return Failure(type="UnknownTool", detail=error.message)
        if isinstance(error, ToolError):
            return to_failure(error)
        return Failure(type=type(error).__name__, detail=str(error))

    async def _schemas(self) -> list[Object]:
        listed: list[Object] = []
        tools: dict[str, str] = {}
        for path in self._paths:
            described = await _described(path)
            tools.update((each.name, path) for each in read_schemas(described, path))
            listed += described
        self._tools = tools
        return listed

    async def _path(self, tool: str) -> str:
        if self._tools is None:
            await self._schemas()
        assert self._tools is not None
        try:
            return self._tools[tool]
        except KeyError:
            raise UnknownTool(tool) from None

    async def _run(self, params: frames.ExecuteTool, context: HostContext) -> Any:
        path = await self._path(params.tool_name)
        ended = await _execute(
            [path, "run", params.tool_name],
            params.arguments,
            lambda text: context.output(text, "stderr"),
        )
        if ended.code:
            return {
                "success": False,
                "error": ended.problem,
                "output": {"metadata": {"exit_code": ended.code}},
            }
        return _read(ended.stdout)

    async def _preview(self, params: frames.FormatToolCallPreview) -> str | None:
        path = await self._path(params.tool_name)
        async with asyncio.timeout(SCHEMA_S):
            ended = await _execute([path, "preview", params.tool_name], params.arguments)
        text = ended.stdout.decode(errors="replace").strip()
        return None if ended.code else text or None


async def _described(path: str) -> list[Object]:
    try:
        async with asyncio.timeout(SCHEMA_S):
            ended = await _execute([path, "schema"], {})
    except TimeoutError:
        raise ToolExecutionError(f"{path} schema: no answer in {SCHEMA_S:g} s.") from None
    if ended.code:
        raise ToolExecutionError(f"{path} schema: {ended.problem}")
    try:
        document = strict_json.loads(ended.stdout)
    except strict_json.StrictJsonError as error:
        raise ToolExecutionError(f"{path} schema: not JSON: {error}") from None
    described = document if type(document) is list else [document]
    if not all(type(each) is dict for each in described):
        raise ToolExecutionError(f"{path} schema: neither an object nor a list of objects")
    return described


def _read(stdout: bytes) -> Any:
    try:
        return strict_json.loads(stdout)
    except strict_json.StrictJsonError:
        return {"success": True, "result": stdout.decode(errors="replace").removesuffix("\n")}


class _Ended(NamedTuple):
    code: int
    stdout: bytes
    problem: str
    """Error message for an exit code other than 0."""


async def _execute(
    argv: Sequence[str],
    arguments: Object,
    on_stderr: Callable[[str], None] = lambda text: None,
) -> _Ended:
    """Run a command to its end; any exception while waiting kills its process group."""
    loop = asyncio.get_running_loop()
    try:
        transport, script = await loop.subprocess_exec(
            lambda: _Script(on_stderr), *argv, start_new_session=True
        )
    except OSError as error:
        raise ToolExecutionError(f"{argv[0]} cannot be executed: {error.strerror}") from error
    try:
        stdin: Any = transport.get_pipe_transport(0)
        stdin.write(json.dumps(arguments).encode() + b"\n")
        stdin.close()
        await script.exited
    finally:
        # Remaining processes would hold the pipes open; the output is still in the pipes.
        _end_group(transport.get_pid())
        await asyncio.wait([script.drained], timeout=DRAIN_S)
        transport.close()
    return script.ended(transport.get_returncode() or 0)


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # the group has no process left
        pass


class _Script(asyncio.SubprocessProtocol):
    """The output of one process. After its exit, the pipes may stay open for long."""

    def __init__(self, on_stderr: Callable[[str], None]) -> None:
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_stderr = on_stderr
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._stdout = bytearray()
        self._last = ""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            if text := self._decoder.decode(data):
                self._last = (self._last + text)[-2 * _SHOWN :]
                self._on_stderr(text)
        elif len(self._stdout) <= MAX_LINE:
            self._stdout += data
            if len(self._stdout) > MAX_LINE and not self.exited.done():
                self.exited.set_exception(Unsendable("the output exceeds the maximum of a line"))

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.drained.done():
            self.drained.set_result(None)

    def ended(self, code: int) -> _Ended:
        if len(self._stdout) > MAX_LINE:
            raise Unsendable("the output exceeds the maximum of a line")
        lines = self._last.splitlines()[-_SHOWN_LINES:]
        ending = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        shown = "\n".join(lines)[-_SHOWN:].strip()
        return _Ended(code, bytes(self._stdout), shown or f"The script {ending}.")
