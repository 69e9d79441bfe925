"""claude-agent-sdk: hooks that submit every tool call of Claude Code to a gate.

    options = gate_options(gate, ClaudeAgentOptions(...))

Claude Code runs its tools itself. A call is open from the hook before it to the hook after it, so
that its record includes the end. If the hook fails, the call is refused (`on_failure="block"`). The
answer is always a decision, so `can_use_tool` and Claude Code's own permissions do not apply. Its
commands run outside callgate's sandbox.

It works in the gate's workspace. Relative paths become absolute before the check and the run,
because commands of Claude Code change its working directory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

from callgate.adapters.guard import NOT_JUDGED, Effect, Effects, GateError, Guard
from callgate.core.tasks import TaskSet
from callgate.gate import Gate

READS_NETWORK = ("read-only", "accesses-network")
BUILT_IN: Mapping[str, Effect] = {
    "Bash": "execute",
    "Edit": "write",
    "ExitPlanMode": "none",
    "Glob": "read",
    "Grep": "read",
    "LS": "read",
    "MultiEdit": "write",
    "NotebookEdit": "write",
    "Read": "read",
    "Task": "none",
    "TodoWrite": "none",
    "WebFetch": READS_NETWORK,
    "WebSearch": READS_NETWORK,
    "Write": "write",
}
"""Effects of Claude Code's tools. `Task` starts an agent, whose calls are checked separately."""
PATHS = {
    "Edit": ("file_path",),
    "Glob": ("path",),
    "Grep": ("path",),
    "LS": ("path",),
    "MultiEdit": ("file_path",),
    "NotebookEdit": ("notebook_path",),
    "Read": ("file_path",),
    "Write": ("file_path",),
}
_SEARCHES = ("Glob", "Grep", "LS")
"""Tools whose default path is the working directory."""
_MOST_PATTERNS = 256
_COULD = "could change a call after callgate's decision"
HOOK_S = 900.0
"""Claude Code's time limit for the hook, which includes the time for a person's answer."""


def gate_options(
    gate: Gate,
    options: ClaudeAgentOptions | None = None,
    effects: Effects | None = None,
    *,
    paths: Mapping[str, Iterable[str]] | None = None,
    timeout_s: float | None = None,
    trust_settings: bool = False,
) -> ClaudeAgentOptions:
    """Return the options with callgate's hooks.

    `effects` and `paths`: see `Guard`; Claude Code's own tools need no entries. A third-party
    hook could change a call after callgate's decision. Settings files are therefore not loaded, and
    options with such a hook, settings or plugins raise `ValueError`. `trust_settings` allows the
    settings and plugins of the options. `cwd` must be the gate's workspace, else `ValueError`.
    """
    options = options or ClaudeAgentOptions()
    workspace = gate.session.workspace
    if options.cwd is None:
        options = dataclasses.replace(options, cwd=workspace)
    elif os.path.realpath(options.cwd) != os.path.realpath(workspace):
        raise ValueError(
            f"cwd is {os.fspath(options.cwd)!r}, but must be the gate's workspace {workspace!r}"
        )
    given = dict(options.hooks or {})
    if given.get("PreToolUse"):
        raise ValueError(f"the options have a PreToolUse hook already, which {_COULD}")
    if not trust_settings:
        for name in ("setting_sources", "settings", "plugins"):
            if getattr(options, name, None):
                raise ValueError(
                    f"the options have {name}, whose hooks {_COULD}. Set trust_settings to allow it"
                )
        options = dataclasses.replace(options, setting_sources=[])  # None would load all files
    guard = Guard(
        gate, effects, paths={**PATHS, **(paths or {})}, timeout_s=timeout_s, known=BUILT_IN
    )
    session = _OpenCalls(guard)
    given["PreToolUse"] = [HookMatcher(hooks=[session.before], timeout=HOOK_S, on_failure="block")]
    for event, hook in (
        ("UserPromptSubmit", session.prompted),
        ("PostToolUse", session.after),
        ("PostToolUseFailure", session.failed),
        ("Stop", session.stopped),
    ):
        given[event] = [*given.get(event, ()), HookMatcher(hooks=[hook])]
    return dataclasses.replace(options, hooks=given)


class _OpenCalls:
    """The open calls of Claude Code, by its call id."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._ends: dict[str, tuple[str, asyncio.Future[Any]]] = {}
        """Call id -> Claude Code's session, and the future of the result."""
        self._tasks = TaskSet()

    async def before(self, event: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        allowed: asyncio.Future[dict[str, Any]] = loop.create_future()
        ended: asyncio.Future[Any] = loop.create_future()
        id = event["tool_use_id"]
        name, where = event["tool_name"], event.get("cwd") or self._guard.gate.session.workspace
        given = with_absolute_paths(name, event["tool_input"], where)
        if name == "Glob" and leads_elsewhere(given.get("pattern")):
            return _decision("deny", "The Glob pattern leads out of its directory: use `path`.")

        async def run(judged: dict[str, Any]) -> Any:
            self._ends[id] = (event["session_id"], ended)
            allowed.set_result(judged)
            try:
                return await ended
            finally:
                self._ends.pop(id, None)

        call = self._tasks.start(self._guard.call(name, given, run, call_id=id))
        call.add_done_callback(partial(_report_refusal, allowed))
        try:
            return _decision("allow", "callgate", await allowed)
        except GateError as error:
            return _decision("deny", str(error))
        except asyncio.CancelledError:  # Claude Code does not wait for the answer any more
            call.cancel()
            raise

    async def after(self, event: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        self._end(event, result=event.get("tool_response"))
        return {}

    async def failed(self, event: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        self._end(event, error=RuntimeError(str(event.get("error"))))
        return {}

    async def prompted(self, event: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        await self._guard.add_prompts([event["prompt"]])
        return {}

    async def stopped(self, event: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """End the calls without a report, such as interrupted ones."""
        for session_id, ended in tuple(self._ends.values()):
            if session_id == event["session_id"]:
                ended.cancel()
        return {}

    def _end(self, event: Any, result: Any = None, error: Exception | None = None) -> None:
        _, ended = self._ends.pop(event["tool_use_id"], (None, None))
        if ended is None or ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)


def with_absolute_paths(name: str, arguments: Mapping[str, Any], cwd: str) -> dict[str, Any]:
    """Return a tool's arguments with absolute paths, relative to `cwd`."""
    found = dict(arguments)
    for parameter in PATHS.get(name, ()):
        path = found.get(parameter)
        if isinstance(path, str) and path.strip():
            found[parameter] = os.path.join(cwd, os.path.expanduser(path.strip()))
        elif name in _SEARCHES and (path is None or isinstance(path, str)):
            found[parameter] = cwd
    return found


def leads_elsewhere(pattern: Any) -> bool:
    """Return whether a file pattern may match outside its directory."""
    waiting, seen = [pattern], 0
    while waiting:
        each, seen = waiting.pop(), seen + 1
        if (
            not isinstance(each, str)
            or each.strip().startswith(("/", "~"))
            or seen > _MOST_PATTERNS
        ):
            return True
        if ".." in each or "\\" in each or each[1:2] == ":":
            return True
        end = each.find("}")
        start = each.rfind("{", 0, max(end, 0))
        if 0 <= start < end:
            choices = each[start + 1 : end].split(",")
            waiting += [each[:start] + one + each[end + 1 :] for one in choices]
    return False


def _decision(
    decision: str, reason: str, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    output = {
        "hookEventName": "PreToolUse",
        "permissionDecision": decision,
        "permissionDecisionReason": reason,
    }
    updated = {} if arguments is None else {"updatedInput": arguments}
    return {"hookSpecificOutput": {**output, **updated}}


def _report_refusal(allowed: asyncio.Future[Any], call: asyncio.Task[Any]) -> None:
    """Report the refusal of a call. After a decision, only the record contains the error."""
    error = None if call.cancelled() else call.exception()
    if not allowed.done():
        allowed.set_exception(error if isinstance(error, GateError) else GateError(NOT_JUDGED))
