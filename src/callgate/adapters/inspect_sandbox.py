"""Inspect: a sandbox environment in which commands run as those of our `shell` tool do.

    Task(dataset=..., solver=..., sandbox="callgate")

Each sample has a workspace of its own, and nothing else that it can write to. Every command and
every file goes through a dispatcher, in mode `write`: a rule of the settings may still refuse it.
There is no network but what the settings give to commands. What the machine cannot guarantee is
not run: `callgate doctor` says why.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from callgate.core.commands import Command, Running, Stream
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolErrorClass, ToolExecutionError
from callgate.core.results import ToolResult
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.gate import Gate
from callgate.sandbox.launch import child_environment

NOT_FOUND = 127
"""As a shell reports a command that is not there."""

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "description": "Which bytes go in or come out."}
_FILE = {"path": _TEXT, "transfer": _NUMBER}


def _definition(
    name: str, effect: SideEffects, properties: dict[str, Any], path: str
) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description="",
        input_schema={"type": "object", "properties": properties, "required": [*properties]},
        side_effects=effect,
        path_params=(path,),
        sandboxed=effect is SideEffects.EXECUTE,
    )


class _Transfers:
    """Bytes on their way into a sample or out of it: no part of a call's arguments, which are
    shown and recorded, but for their number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.contents: dict[int, bytes] = {}

    @contextmanager
    def begin(self, contents: bytes = b"") -> Iterator[int]:
        number = next(self._numbers)
        self.contents[number] = contents
        try:
            yield number
        finally:
            del self.contents[number]


class _Exec:
    """One command."""

    definition = _definition(
        "sandbox_exec",
        SideEffects.EXECUTE,
        {
            "command": {"type": "array", "items": _TEXT, "minItems": 1},
            "cwd": _TEXT,
            "env": {"type": "object", "additionalProperties": True},
            "transfer": _NUMBER,
        },
        "cwd",
    )

    def __init__(self, transfers: _Transfers) -> None:
        self._transfers = transfers
        self._running: Running | None = None

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        output: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE

        def add(stream: Stream, data: bytes) -> None:
            text = output[stream]
            text += data
            del text[: max(len(text) - most, 0)]

        with open(os.memfd_create("stdin"), "wb+", buffering=0) as stdin:
            stdin.write(self._transfers.contents[input["transfer"]])
            stdin.seek(0)
            command = Command(
                argv=tuple(input["command"]),
                cwd=os.path.join(context.workspace_path, input["cwd"]),
                env={**child_environment(os.environ), **input["env"]},
                stdin=stdin.fileno(),
                call=context.tool_use_id,
            )
            try:
                async with await context.launcher.start(command, add) as self._running:
                    ended = await self._running.wait()
            except FileNotFoundError:
                return ToolOutput(content=[TextBlock("not found")], value=[NOT_FOUND, "", ""])
            except OSError as error:
                raise ToolExecutionError(f"It could not be started: {error.strerror}.") from error
        code = ended.code if ended.code is not None else -(ended.signal or 1)
        texts = [bytes(each).decode("utf-8", "replace") for each in output.values()]
        return ToolOutput(content=[TextBlock("".join(texts))], value=[code, *texts])

    async def cancel(self) -> bool:
        return self._running is not None and self._running.stop()


class _Write:
    """One file that is written."""

    definition = _definition("sandbox_write", SideEffects.WRITE, _FILE, "path")

    def __init__(self, transfers: _Transfers) -> None:
        self._transfers = transfers

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        contents = self._transfers.contents[input["transfer"]]
        context.workspace_files.write_bytes(input["path"], contents)
        return ToolOutput(content=[TextBlock(f"{len(contents)} bytes")])

    async def cancel(self) -> bool:
        return False


class _Read:
    """One file that is read."""

    definition = _definition("sandbox_read", SideEffects.READ, _FILE, "path")

    def __init__(self, transfers: _Transfers) -> None:
        self._transfers = transfers

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        contents = context.workspace_files.read_bytes(input["path"])
        self._transfers.contents[input["transfer"]] = contents
        return ToolOutput(content=[TextBlock(f"{len(contents)} bytes")])

    async def cancel(self) -> bool:
        return False


@sandboxenv(name="callgate")
class CallgateSandbox(SandboxEnvironment):
    """The workspace of one sample."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="callgate-sample-")
        self._transfers = _Transfers()
        factories = [partial(kind, self._transfers) for kind in (_Exec, _Write, _Read)]
        self._gate = Gate(self._directory.name, factories, mode="write", title="Inspect sample")

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        sandbox = cls()
        await sandbox._gate.__aenter__()
        return {"default": sandbox}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for each in environments.values():
            sandbox = each.as_type(cls)
            await sandbox._gate.__aexit__(None, None, None)
            sandbox._directory.cleanup()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError("Commands run as the user who started Inspect.")
        stdin = input.encode() if isinstance(input, str) else input or b""
        arguments = {"command": cmd, "cwd": cwd or ".", "env": env or {}}
        with self._transfers.begin(stdin) as number:
            result = await self._gate.call(
                "sandbox_exec", {**arguments, "transfer": number}, timeout_s=timeout
            )
        if not result.ok:
            raise _error(result)
        code, stdout, stderr = result.value
        return ExecResult(success=code == 0, returncode=code, stdout=stdout, stderr=stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        with self._transfers.begin(data) as number:
            result = await self._gate.call("sandbox_write", {"path": file, "transfer": number})
        if not result.ok:
            raise _error(result)

    async def read_file(self, file: str, text: bool = True) -> Any:
        with self._transfers.begin() as number:
            result = await self._gate.call("sandbox_read", {"path": file, "transfer": number})
            contents = self._transfers.contents[number]
        if not result.ok:
            raise _error(result)
        if len(contents) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit_str=limit, truncated_output=None)
        return contents.decode() if text else contents


_ERRORS = {"file_not_found": FileNotFoundError, "wrong_type": IsADirectoryError}


def _error(result: ToolResult) -> Exception:
    """What Inspect expects of a sandbox; it shows these to the model."""
    error = result.error
    if error is not None and error.error_class is ToolErrorClass.TIMEOUT:
        return TimeoutError(result.text)
    return _ERRORS.get(str(error and error.reason), PermissionError)(result.text)
