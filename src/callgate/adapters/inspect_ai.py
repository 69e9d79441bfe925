"""Inspect: an approver for every tool call of an evaluation, and a sandbox environment.

    eval(task, model, approval=[ApprovalPolicy(gate_approver(effects={...}), "*")])
    Task(dataset=..., solver=..., sandbox="callgate")

Inspect runs an approved tool itself, so callgate records only the decision; Inspect's own log
contains the outcome. Each sample has a separate session with its own conversation and answers,
unless `gate` is set.

`sandbox="callgate"` runs commands like callgate's `shell` tool. Each sample has a separate
workspace, the only writable directory. Every command and file access goes through a dispatcher in
mode `write`, so a rule in the settings may still refuse it. The settings for commands control the
network access. The run stops if the machine lacks a required guarantee: see `callgate doctor`.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from inspect_ai.approval import Approval, Approver, approver
from inspect_ai.hooks import Hooks, RunEnd, SampleEnd, hooks
from inspect_ai.model import ChatMessage, ChatMessageUser
from inspect_ai.tool import ToolCall, ToolCallView
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
    store,
)

from callgate.adapters.guard import GateError, Guard, is_unchanged
from callgate.core.calls import ToolResult
from callgate.core.commands import Command, Running, Stream
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolErrorClass, ToolExecutionError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.gate import Gate
from callgate.sandbox.plans import child_environment

_KEY = "callgate:session"
"""Key of the gate in a sample's store."""

_PROMPTED = "callgate:prompted"

_open: dict[str, Gate] = {}
"""The gates of running samples. Inspect has no callback for the end of an approver."""


@approver(name="gate")
def gate_approver(
    effects: Mapping[str, Any] | None = None,
    workspace: str = ".",
    mode: str | None = None,
    home: str | None = None,
    gate: Gate | None = None,
) -> Approver:
    """Return an approver that approves, edits or rejects calls by callgate's policy.

    `effects` maps each tool to its effect (`{"bash": "execute", "think": "none"}`). A tool without
    an effect needs approval. `gate` is one gate for all samples, open in the loop of `eval_async`.
    """
    guards: dict[str, Guard] = {}
    shared = None if gate is None else Guard(gate, effects)

    async def find_guard() -> Guard:
        if shared is not None:
            return shared
        key = store().get(_KEY)
        if key is None or key not in _open:
            key = uuid.uuid4().hex
            store().set(_KEY, key)
            _open[key] = await Gate(workspace, [], mode=mode, home=home).__aenter__()
        if key not in guards:
            guards[key] = Guard(_open[key], effects)
        return guards[key]

    async def approve(
        message: str, call: ToolCall, view: ToolCallView, history: list[ChatMessage]
    ) -> Approval:
        approved: list[dict[str, Any]] = []

        async def run(judged: dict[str, Any]) -> str:
            approved.append(judged)
            return "Approved. Inspect runs the tool."

        try:
            await (await find_guard()).call(
                call.function, call.arguments, run, call_id=call.id, prompts=_first_prompts(history)
            )
        except GateError as error:
            return Approval(decision="reject", explanation=str(error))
        (judged,) = approved
        if is_unchanged(judged, call.arguments):
            return Approval(decision="approve")
        return Approval(decision="modify", modified=dataclasses.replace(call, arguments=judged))

    return approve


@hooks(name="callgate", description="Closes the sessions of samples that have ended.")
class SessionHooks(Hooks):
    """Closes the gates of `gate_approver`."""

    def enabled(self) -> bool:
        """Return whether gates are open. Inspect prints the enabled hooks at its start."""
        return bool(_open)

    async def on_sample_end(self, data: SampleEnd) -> None:
        await _close(data.sample.store.get(_KEY))

    async def on_run_end(self, data: RunEnd) -> None:
        for key in tuple(_open):
            await _close(key)


async def _close(key: Any) -> None:
    gate = _open.pop(key, None) if isinstance(key, str) else None
    if gate is not None:
        await gate.__aexit__(None, None, None)


def _first_prompts(history: list[ChatMessage]) -> list[str]:
    """Return the input of the sample at its first call.

    Later prompts may be a model's words, in agents that other agents have started.
    """
    if store().get(_PROMPTED):
        return []
    store().set(_PROMPTED, True)
    return [
        each.text
        for each in history
        if isinstance(each, ChatMessageUser) and each.source == "input"
    ]


NOT_FOUND = 127
"""Exit code of a shell for a missing command."""

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "description": "Identifier of the transferred data."}
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
    """Bytes that are transferred into a sample or out of it, by number.

    A call's arguments contain only the number, because arguments are displayed and recorded.
    """

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
    """A call that runs one command."""

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
                raise ToolExecutionError(
                    f"The command could not be started: {error.strerror}."
                ) from error
        code = ended.code if ended.code is not None else -(ended.signal or 1)
        texts = [bytes(each).decode("utf-8", "replace") for each in output.values()]
        return ToolOutput(content=[TextBlock("".join(texts))], value=[code, *texts])

    async def cancel(self) -> bool:
        return self._running is not None and self._running.stop()


class _Write:
    """A call that writes one file."""

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
    """A call that reads one file."""

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
    """Return the exception that Inspect expects from a sandbox and shows to the model."""
    error = result.error
    if error is not None and error.error_class is ToolErrorClass.TIMEOUT:
        return TimeoutError(result.text)
    return _ERRORS.get(str(error and error.reason), PermissionError)(result.text)
