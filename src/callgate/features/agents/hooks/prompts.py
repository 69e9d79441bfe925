"""Prompts that the hook of an agent reports: which of them count as the user's words.

A prompt vouches for destinations, so no call of the agent may report one. The token of the hook
proves little: a command that the agent runs outside the sandbox can read it.

    peer process <- timeout <- hook <- shell  |  <- agent
        all of them run callgate's hook       |  the process that reports the calls of the session
                                     ^ the hook's first process: a child of the agent, just
                                       started, and not while the agent ran a command

A command of the agent is a child of the agent, too. It started between the approval of its call
and the report on its end, and the kernel does not change this time. Children of a command have
another parent, also in the background. A doubtful prompt is dropped, so the guard asks more.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
import tomllib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice

import msgspec

from callgate.features.agents.known import hook_directory, hooks_of, settings_text, user_file

_CLIENT = os.path.join(os.path.dirname(os.path.dirname(__file__)), "commands", "hook_client.py")
_MOST_PARENTS = 32
_FRESH_S = 20.0
"""Maximum age of the hook's first process when its prompt arrives."""
_UNREPORTED_S = 60.0
"""Time in which a skill starts its commands, if the agent reports no end of it."""
_GRAIN_S = 0.05
"""Imprecision of the start of a process."""
_MOST_SPANS = 512
_MOST_PLANNED = 256
_LONGEST_PLANNED = 20_000
_SHORT = 12
_MOST_TEMPLATES = 1_000
_COMMAND_FILES = (".toml", ".md")
_INSERT = re.compile(r"[!@]\{[^}]*\}|\{\{args\}\}")
_INSERTS_OTHERS = re.compile(r"[!@]\{")
_PLANS = ("prompt", "message", "args", "arguments", "instructions")
"""Arguments of agents' tools whose text may return as a prompt: sub-agents, schedules, messages."""


class Process(msgspec.Struct, frozen=True):
    pid: int
    started: int
    """Start in clock ticks since the system started. It tells processes with one id apart."""


class Peer(msgspec.Struct, frozen=True):
    """The process at the other end of a hook's connection."""

    agent: Process
    """The process that started the hook."""
    hook_started_s: float
    """Start of the hook's first process, in seconds since the system started."""


Sender = Callable[[], Peer | None]
"""Looks up the process that sent an event, while it waits for the answer."""


class Span(msgspec.Struct):
    """Time in which the agent may start a process for a call, since the start of the system."""

    key: str
    begin_s: float
    end_s: float | None = None

    def covers(self, at_s: float) -> bool:
        end_s = float("inf") if self.end_s is None else self.end_s
        return self.begin_s - _GRAIN_S <= at_s <= end_s + _GRAIN_S


class Spans:
    """The commands and skills of one session that run outside callgate's sandbox."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=_MOST_SPANS)

    def begin(self, key: str, *, undecided: bool = False) -> None:
        begin_s = _now_s()
        self._spans.append(Span(key, begin_s, begin_s + _UNREPORTED_S if undecided else None))

    def end(self, key: str) -> None:
        now_s = _now_s()
        for span in self._spans:
            if span.key == key and (span.end_s is None or span.end_s > now_s):
                span.end_s = now_s
                return

    def cover(self, at_s: float) -> bool:
        return any(span.covers(at_s) for span in self._spans)


class Planned:
    """Texts of a model that may return as a prompt, such as the prompt of a schedule."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=_MOST_PLANNED)

    def note(self, input: Mapping[str, object]) -> None:
        for name in _PLANS:
            value = input.get(name)
            if isinstance(value, str) and value.strip():
                self._texts.append(value.strip()[:_LONGEST_PLANNED])

    def contain(self, words: str) -> bool:
        plain = words.strip()
        return any(each == plain or (len(each) >= _SHORT and each in plain) for each in self._texts)


def contain_command(words: str, agent: str, workspace: str) -> bool:
    """Return whether a prompt may be the full text of a command with inserted output or files.

    Other people may have written these parts, and the agent does not mark them.
    """
    for directory in hooks_of(agent).expanded_commands:
        path = os.path.join(workspace, os.path.expanduser(directory))
        for template in islice(_templates(path), _MOST_TEMPLATES):
            literals = [
                line.strip() for part in _INSERT.split(template) for line in part.split("\n")
            ]
            longest = max(literals, key=len, default="")
            if _INSERTS_OTHERS.search(template) and longest in words:
                return True
    return False


def _templates(directory: str) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith(_COMMAND_FILES):
                text = settings_text(os.path.join(parent, name)) or ""
                yield _prompt_of(text) if name.endswith(".toml") else text


def _prompt_of(text: str) -> str:
    try:
        prompt = tomllib.loads(text).get("prompt", "")
    except (ValueError, RecursionError):
        return ""  # the agent cannot read it, either
    return prompt if isinstance(prompt, str) else ""


def doubt(
    peer: Peer | None, agent: Process | None, spans: Collection[Spans], now_s: float | None = None
) -> str | None:
    """Return why a prompt does not count as the user's words, or None.

    `agent` is the process that reports the session's calls. None: unknown.
    """
    if peer is None:
        return "this system does not name the process that sent it"
    if peer.agent.pid <= 1:
        return "no agent sent it"
    if agent is not None and agent != peer.agent and is_running(agent):
        return "another process than the agent sent it"
    age_s = (_now_s() if now_s is None else now_s) - peer.hook_started_s
    if age_s > _FRESH_S:
        return "its hook started long before"
    if any(each.cover(peer.hook_started_s) for each in spans):
        return "the agent was running a command outside callgate's sandbox"
    return None


def hook_programs(home: str, agent: str) -> tuple[str, ...]:
    """Return paths that appear in the command line of every process of an agent's hook."""
    programs = (os.path.join(hook_directory(home, agent), "hook"), os.path.abspath(_CLIENT))
    hooks = hooks_of(agent)
    return (*programs, os.path.dirname(user_file(agent))) if hooks.file.is_executable else programs


def peer_of(connection: socket.socket, own_programs: Collection[str]) -> Peer | None:
    """Return the peer of a connection; None if unknown. `own_programs`: paths of hook programs."""
    if not hasattr(socket, "SO_PEERCRED"):  # only Linux identifies the process
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return find_peer(struct.unpack("3i", data)[0], own_programs)


def find_peer(pid: int, own_programs: Collection[str]) -> Peer | None:
    """Return the agent above a process of the hook; None if the process is not of the hook."""
    first: Process | None = None
    for each in _ancestors(pid):
        if not _runs(each.pid, own_programs):
            return None if first is None else Peer(each, _seconds(first.started))
        first = each
    return None


def is_running(process: Process) -> bool:
    return _process(process.pid)[0] == process


def _ancestors(pid: int) -> Iterator[Process]:
    for _ in range(_MOST_PARENTS):
        process, parent = _process(pid)
        if process is None:
            return
        yield process
        pid = parent


def _process(pid: int) -> tuple[Process | None, int]:
    """Return a process and the id of its parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Process(pid, int(fields[19])), int(fields[1])
    except (OSError, ValueError, IndexError):
        return None, 0


def _runs(pid: int, own_programs: Collection[str]) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(64 * 1024).decode("utf-8", "replace")
    except OSError:
        return False
    return any(each in line for each in own_programs)


def _now_s() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def _seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK")
