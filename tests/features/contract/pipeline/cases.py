"""Situations of a call: how it is made, how it is answered, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.policy.rules import Outcome

ALLOW = Answer(decision=Outcome.ALLOW)
DENY = Answer(decision=Outcome.DENY)


def edited(**arguments: Any) -> Answer:
    return Answer(decision=Outcome.ALLOW, arguments=arguments)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    tool: str = "write_file"
    arguments: dict[str, Any] = field(default_factory=dict)
    mode: str = "ask"
    settings: str = ""
    person: bool = True
    """Whether an approver is attached."""
    answer: Answer | None = ALLOW
    """Answer to every question; None: the question stays open."""
    stop: Literal["", "asked", "running", "queued"] = ""
    """Stage of the call in which it is cancelled."""
    timeout_s: float | None = None
    before: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Calls that are made first."""
    is_containable: bool = True
    """Whether the machine can guarantee a sandbox."""
    is_recordable: bool = True
    """Whether the audit log is writable."""
    is_closing: bool = False
    """Whether the runtime shuts down before the call."""
    variant: str = ""
    """Way of the call that only one entry has."""


def rule(decision: str, **fields: str) -> str:
    lines = "".join(f'{key} = "{value}"\n' for key, value in fields.items())
    return f'[[policy.rules]]\ndecision = "{decision}"\n{lines}'


WRITE = {"path": "a.txt", "content": "bye\n"}
NEW = {"path": "new/b.txt", "content": "new\n"}
PATCH = {"path": "a.txt", "old": "hello", "new": "bye"}
ECHO = {"command": "echo hi"}
TOUCH = {"command": "touch made"}
PRIVATE = rule("deny", path="private/**")

COMMON = (
    Case(name="allowed read", tool="read_file", arguments={"path": "a.txt"}),
    Case(name="allowed write", arguments=WRITE, mode="write"),
    Case(name="allowed command", tool="shell", arguments=ECHO, mode="write"),
    Case(name="allowed by rule", arguments=WRITE, settings=rule("allow", tool="write_file")),
    Case(name="approved write", arguments=WRITE),
    Case(name="approved new file", arguments=NEW),
    Case(name="approved patch", tool="patch_file", arguments=PATCH),
    Case(name="approved command", tool="shell", arguments=ECHO),
    Case(name="approved command with network", tool="shell", arguments={**ECHO, "network": True}),
    Case(name="approved always_ask", tool="transfer", arguments={"amount": 5}, mode="write"),
    Case(name="denied write", arguments=WRITE, answer=DENY),
    Case(
        name="denied command with reason",
        tool="shell",
        arguments=TOUCH,
        answer=Answer(decision=Outcome.DENY, reason="not now"),
    ),
    Case(name="edited write", arguments=WRITE, answer=edited(path="c.txt", content="edited\n")),
    Case(name="edited command", tool="shell", arguments=ECHO, answer=edited(command="echo edited")),
    Case(name="edited to a path outside", arguments=WRITE, answer=edited(path="../x", content="")),
    Case(name="cancelled while asked", arguments=WRITE, answer=None, stop="asked"),
    Case(name="cancelled command while asked", tool="shell", arguments=TOUCH, answer=None, stop="asked"),
    Case(name="cancelled while running", tool="wait", stop="running"),
    Case(name="cancelled with effects while running", tool="work", mode="write", stop="running"),
    Case(
        name="cancelled while queued",
        tool="put",
        arguments={"what": "x"},
        mode="write",
        settings="[limits]\nconcurrency = 1\n",
        stop="queued",
    ),
    Case(
        name="question timed out",
        arguments=WRITE,
        answer=None,
        settings="[limits]\nconfirmation_timeout_s = 0.05\n",
    ),
    Case(name="timed out", tool="wait", settings="[limits]\nmax_timeout_s = 0.05\n"),
    Case(name="reported failure", tool="fails", arguments={"how": "reported"}),
    Case(name="tool error", tool="fails", arguments={"how": "raised"}),
    Case(name="defect", tool="fails", arguments={"how": "defect"}),
    Case(name="command fails", tool="shell", arguments={"command": "exit 3"}, mode="write"),
    Case(name="missing file", tool="read_file", arguments={"path": "none"}),
    Case(name="effect mismatch", tool="lies"),
    Case(name="unknown tool", tool="nothing", arguments={"a": 1}),
    Case(name="invalid arguments", arguments={"path": 7, "more": "x"}),
    Case(name="path outside", tool="read_file", arguments={"path": "../../etc/passwd"}),
    Case(name="command outside", tool="shell", arguments={**ECHO, "cwd": "/etc"}, mode="write"),
    Case(name="protected path", arguments={"path": ".git/hooks/pre-commit", "content": "x"}, mode="write"),
    Case(name="refused by mode", arguments=WRITE, mode="read"),
    Case(name="command in mode read", tool="shell", arguments=ECHO, mode="read"),
    Case(name="refused by rule", arguments=WRITE, settings=rule("deny", tool="write_file")),
    Case(
        name="command refused by rule",
        tool="shell",
        arguments=TOUCH,
        mode="write",
        settings=rule("deny", tool="shell", command="touch *"),
    ),
    Case(name="no approver", arguments=WRITE, person=False),
    Case(name="command without approver", tool="shell", arguments=TOUCH, person=False),
    Case(name="no sandbox", tool="shell", arguments=ECHO, mode="write", is_containable=False),
    Case(name="no sandbox in mode read", tool="shell", arguments=ECHO, mode="read", is_containable=False),
    Case(name="audit log not writable", arguments=WRITE, mode="write", is_recordable=False),
    Case(name="audit log not writable for a command", tool="shell", arguments=ECHO, mode="write", is_recordable=False),
    Case(name="read without audit log", tool="read_file", arguments={"path": "a.txt"}, is_recordable=False),
    Case(name="shutting down", arguments=WRITE, mode="write", is_closing=True),
    Case(
        name="path rule names a file of a command",
        tool="shell",
        arguments={"command": "cat private/key"},
        mode="write",
        settings=PRIVATE,
    ),
    Case(
        name="path rule asks about a command",
        tool="shell",
        arguments={"command": "cat private/key"},
        mode="write",
        settings=rule("ask", path="private/**"),
    ),
    Case(name="path rule binds a command", tool="shell", arguments=ECHO, mode="write", settings=PRIVATE),
    Case(
        name="command only reads",
        tool="shell",
        arguments={"command": "cat a.txt"},
        settings='[policy]\nread_commands = "allow"\n',
    ),
    Case(name="command only reads and needs approval", tool="shell", arguments={"command": "cat a.txt"}),
    Case(
        name="over budget",
        tool="read_file",
        arguments={"path": "a.txt"},
        settings="[policy.budgets.session]\ncalls = 1\n",
        before=(("read_file", {"path": "a.txt"}),),
    ),
    Case(
        name="over budget without approver",
        tool="put",
        arguments={"what": "b"},
        mode="write",
        settings="[policy.budgets.session]\ncalls = 1\n",
        before=(("put", {"what": "a"}),),
        person=False,
    ),
    Case(
        name="answer remembered for the session",
        tool="put",
        arguments={"what": "b"},
        answer=Answer(decision=Outcome.ALLOW, scope=Scope.SESSION),
        before=(("put", {"what": "a"}),),
    ),
)


def only(*tools: str) -> tuple[Case, ...]:
    """The common cases of some tools, for entries that have no others."""
    return tuple(case for case in COMMON if case.tool in tools)


def varied(variant: str, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The same cases in another way."""
    return tuple(replace(case, name=f"{variant}: {case.name}", variant=variant) for case in cases)
