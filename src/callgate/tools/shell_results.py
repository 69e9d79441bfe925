"""Result of a `shell` call: both streams, changed files, remarks on its end and on later effects.

Later effects happen on a server after a push, or when another user runs a set-uid file.
`workspace/executed_later` finds files that programs of this machine execute later.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from asyncio import Future
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from callgate.core.commands import Exit, Launcher, Stream
from callgate.core.content import TextBlock
from callgate.core.tools import ToolContext, ToolOutput
from callgate.sandbox.dry_runs.manifests import Before, Observed, observe, sendable
from callgate.sandbox.processes.outputs import Capture, Deltas
from callgate.workspace.protected import is_pipeline


def remarks(observed: Observed, workspace: str) -> list[str]:
    """Return remarks for a result, one line each, with every path. Blocks."""
    workspace = os.path.realpath(workspace)
    pipelines = filter(is_pipeline, observed.deleted)
    lines = [
        _line("deleted, and ran on a server after a push", map(sendable, _outermost(pipelines))),
        _line(
            "set-uid or set-gid: other users run it with your rights",
            map(sendable, _set_id(observed, workspace)),
        ),
    ]
    return [line for line in lines if line]


def _set_id(observed: Observed, workspace: str) -> Iterator[str]:
    """Yield files that other users run as us. Commands on Linux cannot set the bits (`seccomp`)."""
    for path in (*observed.created, *observed.changed):
        try:
            mode = os.lstat(os.path.join(workspace, path)).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            yield path


def _line(title: str, paths: Iterable[str]) -> str:
    named = ", ".join(paths)
    return f"[{title}: {named}]" if named else ""


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the sorted paths, without paths below another one."""
    found: list[str] = []
    for path in sorted(paths):
        if not (found and path.startswith(f"{found[-1]}/")):
            found.append(path)
    return found


SHOWN = 256 * 1024
"""Maximum bytes of each output stream in memory, and in a result."""


class Streams:
    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._deltas = Deltas(context.output)
        self._captures: dict[Stream, Capture] = {
            "stdout": Capture(SHOWN, lambda: context.artifact("stdout.txt")),
            "stderr": Capture(SHOWN, lambda: context.artifact("stderr.txt")),
        }

    def add(self, stream: Stream, data: bytes) -> Future[None] | None:
        """Take output. Returns a future to wait for before more is read."""
        self._captures[stream].add(data)
        self._deltas.add(stream, data)
        return self._context.backpressure()

    def close(self) -> None:
        self._deltas.close()
        for capture in self._captures.values():
            capture.close()


_MOST_ENTRIES, _MOST_SECONDS = 20_000, 0.5
"""Limits of the search in the workspace, before and after a command, for its changes."""
_MATCHES_NAMED = 10
_NAMED = 1_000
"""Maximum files in a result, which also has their number."""


class CommandOutput(Streams):
    """The streams of one command, and the state of the workspace before it."""

    def __init__(self, context: ToolContext, before: Before | None) -> None:
        super().__init__(context)
        self._before = before
        self._workspace = context.workspace_path

    @classmethod
    async def begin(cls, context: ToolContext, launcher: Launcher) -> CommandOutput:
        """Take the state of the workspace before the command starts, unless the launcher reports
        the changes."""
        if getattr(launcher, "records_changes", False):
            return cls(context, None)
        before = await observe(context.workspace_path, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
        return cls(context, before)

    async def _observed(self, ended: Exit) -> Observed:
        if self._before is not None:
            return await self._before.changes()
        changes = ended.changes
        if changes is None or not changes.is_recorded:
            return Observed(incomplete=("the system did not report changes",))
        return Observed(changes.created, changes.changed, changes.deleted)

    async def result(self, command: str, ended: Exit) -> ToolOutput:
        observed = await self._observed(ended)
        left = await _left_behind(observed, self._workspace)
        out, err = self._captures["stdout"], self._captures["stderr"]
        # Errors may use the space that the output leaves, and a quarter in any case.
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
    """Collect remarks in a thread without this context, so that opens are not the tool's."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, remarks, observed, workspace)


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
            f"[not changed: {named}; commands may not change which programs git runs: "
            "run the git command (git submodule add, git remote add, git config) yourself, "
            "outside the sandbox]"
        )
    if ended.blocked:
        remarks.append(f"[blocked: {', '.join(ended.blocked)}]")
    remarks += [f"[not connected to {each}]" for each in ended.refusals]
    for decision, effect in _MATCHES.items():
        paths = [sendable(each.path) for each in ended.rule_matches if each.decision == decision]
        if paths:
            remarks.append(f"[matches a rule that {effect}: {_few(paths)}]")
    if ended.changes is not None and ended.changes.discarded is not None:
        remarks.append(f"[changes discarded: {ended.changes.discarded}]")
    if ended.changes is not None and (unkept := ended.changes.unkept):
        named = _few([f"{sendable(path)} ({why})" for path, why in unkept])
        remarks.append(f"[changed, cannot be undone: {named}]")
    if ended.unsearched:
        remarks.append(f"[matches of rules are unknown: {ended.unsearched}]")
    remarks += [f"[{line}]" for line in ended.left.lines()]
    return remarks


_MATCHES = {"deny": "denies it", "ask": "asks about it"}


def _few(paths: list[str]) -> str:
    more = len(paths) - _MATCHES_NAMED
    return ", ".join(paths[:_MATCHES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _network(ended: Exit) -> dict[str, Any]:
    """Return the use of a network of named hosts, if there was any."""
    if not ended.blocked and not ended.reached:
        return {}
    used: dict[str, Any] = {"blocked": list(ended.blocked), "reached": ended.reached}
    if ended.approved:
        used["approved"] = list(ended.approved)
    return {"network": used}


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def _lines(sections: list[str]) -> str:
    """Join parts, each beginning on a separate line."""
    text = ""
    for part in filter(None, sections):
        text += part if not text or text.endswith("\n") else "\n" + part
    return text
