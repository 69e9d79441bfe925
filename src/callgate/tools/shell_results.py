"""What a `shell` call gives: both streams, what the command changed, and remarks on its end.

Loaded with the first command that runs.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import msgspec

from callgate.core.commands import Exit
from callgate.core.content import TextBlock
from callgate.core.tools import ToolContext, ToolOutput
from callgate.sandbox.dry_runs.manifests import Before, Observed, observe, sendable
from callgate.tools import deferred_effects
from callgate.tools.streams import SHOWN, Streams

_MOST_ENTRIES, _MOST_SECONDS = 20_000, 0.5
"""How much of a workspace is looked at, before and after a command, for what it changed."""
_MATCHES_NAMED = 10
_NAMED = 1_000
"""Files that a result names; it counts all."""


class CommandOutput(Streams):
    """The streams of one command, and the workspace as it was before it."""

    def __init__(self, context: ToolContext, before: Before) -> None:
        super().__init__(context)
        self._before = before

    @classmethod
    async def begin(cls, context: ToolContext) -> CommandOutput:
        """Look at the workspace; then the command may start."""
        before = await observe(context.workspace_path, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
        return cls(context, before)

    async def result(self, command: str, ended: Exit) -> ToolOutput:
        observed = await self._before.changes()
        left = await _left_behind(observed, self._before.directory)
        out, err = self._captures["stdout"], self._captures["stderr"]
        # Errors may take what the output leaves, and a quarter in any case.
        err_limit = min(err.total, max(SHOWN // 4, SHOWN - out.total))
        out_limit = SHOWN - err_limit
        stdout, stderr = out.show(out_limit), err.show(err_limit)
        truncated = out.total > out_limit or err.total > err_limit
        sections = [stdout, f"[stderr]\n{stderr}" if stderr else "", *_remarks(ended), *left]
        return ToolOutput(
            content=[TextBlock(_lines(sections))],
            success=ended.code == 0 and not ended.stopped,
            command_executed=command,
            files_modified=observed.files[:_NAMED] or None,
            metadata={
                **({"observed": observed.as_metadata()} if observed else {}),
                **_network(ended),
                **({"executed_later": msgspec.to_builtins(ended.left)} if ended.left else {}),
            },
            truncated=truncated,
            value={
                "stdout": stdout,
                "stderr": stderr,
                "exit_code": ended.code,
                "signal": _signal_name(ended.signal),
                "truncated": truncated,
                "stdout_path": out.path,
                "stderr_path": err.path,
                "background_ended": 0 if ended.stopped else ended.ended,
            },
        )


async def _left_behind(observed: Observed, workspace: str) -> list[str]:
    """Not in this context: what is opened there is not opened by the tool that runs."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, deferred_effects.remarks, observed, workspace)


def _remarks(ended: Exit) -> list[str]:
    remarks = []
    if ended.stopped:
        remarks.append("[stopped before it ended]")
    elif ended.signal is not None:
        remarks.append(f"[ended by {_signal_name(ended.signal)}]")
    elif ended.code is None:
        remarks.append("[exit code unknown]")
    elif ended.code != 0:
        remarks.append(f"[exit code {ended.code}]")
    if ended.ended and not ended.stopped:
        remarks.append(f"[processes left in the background were ended: {ended.ended}]")
    if ended.survivors:
        remarks.append(f"[processes that could not be ended: {ended.survivors}]")
    if ended.limit is not None:
        remarks.append(f"[ended: more than `{ended.limit}` of `[sandbox.limits]` allows]")
    if ended.unseen:
        named = ", ".join(map(sendable, ended.unseen))
        remarks.append(f"[not visible in the sandbox: {named}; `[sandbox] readable` can show it]")
    if ended.git_settings:
        named = ", ".join(map(sendable, ended.git_settings))
        remarks.append(
            f"[not changed: {named}; commands may not, because it says which programs git runs: "
            "run what changes it (git submodule add, git remote add, git config) yourself, "
            "outside the sandbox]"
        )
    if ended.blocked:
        remarks.append(f"[blocked: {', '.join(ended.blocked)}]")
    for decision, effect in _MATCHES.items():
        paths = [sendable(each.path) for each in ended.rule_matches if each.decision == decision]
        if paths:
            remarks.append(f"[matches a rule that {effect}: {_few(paths)}]")
    if ended.unsearched:
        remarks.append(f"[what matches a rule now is not known: {ended.unsearched}]")
    remarks += [f"[{line}]" for line in ended.left.lines()]
    return remarks


_MATCHES = {"deny": "denies it", "ask": "asks about it"}


def _few(paths: list[str]) -> str:
    more = len(paths) - _MATCHES_NAMED
    return ", ".join(paths[:_MATCHES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _network(ended: Exit) -> dict[str, Any]:
    """What a command did with a network of named hosts, if it had one and used it."""
    if not ended.blocked and not ended.reached:
        return {}
    return {"network": {"blocked": list(ended.blocked), "reached": ended.reached}}


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def _lines(sections: list[str]) -> str:
    """Parts one under the other, each beginning a line of its own."""
    text = ""
    for part in filter(None, sections):
        text += part if not text or text.endswith("\n") else "\n" + part
    return text
