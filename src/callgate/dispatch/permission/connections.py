"""Approval of hosts that a running command contacts: each question is a call of `connect_host`.

    command --connects--> host_approvals --Connection--> call of connect_host --> the pipeline
                                ^                                                    |
                                +--------------------- Verdict ----------------------+

A question runs through the pipeline: rules and remembered answers cover hosts, every client of the
session and the inbox show the question, and the audit log has the answer. The work of such a call
is to let the connection proceed, so the call ends with the process that waits.

The approval of a command also covers the hosts in its text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, Handover, ToolCall, ToolResult
from callgate.core.commands import (
    CONNECT_HOST,
    Approve,
    Command,
    Connection,
    ConnectionVerdict,
    Launcher,
    OnOutput,
    Running,
)
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode, Session
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.environments import CallContext
from callgate.dispatch.permission.confirmations import Scope
from callgate.policy.provenance.forms import addresses_in
from callgate.redaction.data import summarize
from callgate.redaction.texts import redact
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import AllowedHost

_LONGEST_LABEL = 200
_MOST_SESSIONS = 4_096
_LARGEST_CONFIG = 256 * 1024
_METADATA = "the metadata service of a cloud, which hands out credentials"
_REMOTE_URL = re.compile(r"^[ \t]*url[ \t]*=[ \t]*(\S+)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_REMOTE_HOST = re.compile(
    r"(?P<scheme>https?|ssh|git)://(?:[^@/]*@)?(?P<host>[A-Za-z0-9.-]+)(?::(?P<port>\d+))?/"
    r"|(?:[^@/:]+@)?(?P<scp>[A-Za-z0-9.-]+):(?!/)"
)
_TEXT = {"type": "string", "maxLength": 4096}
_DEFINITION = ToolDefinition(
    name=CONNECT_HOST,
    description="Let a running command connect to a host. Only callgate calls it.",
    input_schema={
        "type": "object",
        "properties": {
            "host": {**_TEXT, "description": "As in a list of hosts of the settings."},
            "port": {"type": "integer", "minimum": 1, "maximum": 65535},
            "address": {**_TEXT, "description": "A private address that the name has."},
            "reaches": {**_TEXT, "description": "Why the address is special."},
            "program": {**_TEXT, "description": "The program that connects."},
            "call": {**_TEXT, "description": "The call that started it."},
            "installs": {**_TEXT, "description": "Its package manager, if it only installs."},
            "reads": {**_TEXT, "description": "Its program, if it only reads from a service."},
        },
        "required": ["host", "port"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.NETWORK,
    requires_workspace=False,
    path_params=(),
    destination_params=("host",),
    output_labels=frozenset(),
    kind="fetch",
    source="builtin",
)

Run = Callable[[ToolCall], Awaitable[ToolResult]]
RunningCalls = Callable[[], Iterator[ToolCall]]


class ConnectHost:
    """The tool `connect_host`. The process that waits for the connection does its work."""

    definition = _DEFINITION

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        raise ToolPermissionDenied(
            "`connect_host` belongs to a running command, and cannot be called.",
            reason="internal_tool",
        )

    async def cancel(self) -> bool:
        return False


class _Approved(ConnectHost):
    """The work of an approved call: the process connects."""

    def __init__(self, factory: ToolFactory) -> None:
        """`factory` is unused: it creates the tool that refuses every call."""

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        assert isinstance(context, CallContext)
        value = {"scope": context.answer_scope}
        return ToolOutput(content=[TextBlock(f"{input['host']} may be reached.")], value=value)


class Connections:
    """Puts questions about hosts for the commands, hosts, servers and agents of a runtime."""

    def __init__(self, run: Run, calls: RunningCalls) -> None:
        self._run = run
        self._calls = calls
        self._remotes: dict[str, frozenset[str]] = {}
        """By session: hosts of the repository's remotes before its first command."""

    def of_call(self, launcher: Launcher, call: ToolCall, *, is_approved: bool) -> Launcher:
        """Return a launcher whose commands put questions for a call. `is_approved`: an approver
        saw the text of its command."""
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        command = arguments.get("command")
        text = command if isinstance(command, str) else ""
        named = hosts_in(text) if is_approved else ()
        label = f"{call.tool}: {text}" if text else call.tool
        remotes = self._remotes_of(call.session)

        async def approve(connection: Connection) -> ConnectionVerdict:
            if any(str(each) == connection.entry for each in named):
                return ConnectionVerdict()
            use = _use(text, connection, remotes)
            return await self._ask(connection, call, label, use)

        return _Approving(launcher, approve)

    def _remotes_of(self, session: Session) -> frozenset[str]:
        root = session.parent or session.id
        if root not in self._remotes:
            while len(self._remotes) >= _MOST_SESSIONS:
                del self._remotes[next(iter(self._remotes))]
            self._remotes[root] = _read_remotes(session.workspace)
        return self._remotes[root]

    def of_process(self, launcher: Launcher, session: Session, name: str) -> Launcher:
        """Return a launcher for a process that serves many calls. A question belongs to the session
        of a call that it serves at that moment, else to its own session, and so does its answer."""
        own_session = Session(workspace=session.workspace, mode=Mode.ASK)
        by_itself = ToolCall(tool=name, arguments={}, session=own_session)

        async def approve(connection: Connection) -> ConnectionVerdict:
            served = next((each for each in self._calls() if _is_of(each, name)), by_itself)
            verdict = await self._ask(connection, served, name)
            return msgspec.structs.replace(verdict, once=True)

        return _Approving(launcher, approve)

    async def _ask(
        self, connection: Connection, call: ToolCall, label: str, use: Mapping[str, str] = {}
    ) -> ConnectionVerdict:
        result = await self._run(
            ToolCall(
                tool=CONNECT_HOST,
                arguments=_arguments(connection, call, use),
                session=call.session,
                caller=CallerKind(call.caller),
                turn_id=call.turn_id,
                scope=call.scope,
                principal=call.principal,
                client=call.client,
                answer_s=call.answer_s,
                parent_event_id=call.parent_event_id,
                handover=Handover(_Approved, takes_slot=False, purpose=_purpose(connection, label)),
            )
        )
        if result.error is not None:
            message = result.error.message
            if result.error.reason == "no_confirmer":
                message += _advice(connection.entry)
            return ConnectionVerdict(refusal=message)
        value = result.value if isinstance(result.value, dict) else {}
        return ConnectionVerdict(once=value.get("scope") == Scope.ONCE)


class _Approving(msgspec.Struct, frozen=True):
    """A launcher whose commands have an `approve` callback."""

    around: Launcher
    approve: Approve

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        asking = msgspec.structs.replace(command, approve=self.approve)
        return await self.around.start(asking, on_output)


def hosts_in(command: str) -> tuple[AllowedHost, ...]:
    """Return the hosts in the text of a command."""
    found = []
    for text in addresses_in(command).values():
        try:
            found.append(allowed_hosts.parse(text))
        except ValueError:
            continue  # not a host of any connection
    return tuple(dict.fromkeys(found))


def _use(command: str, connection: Connection, remotes: Collection[str]) -> dict[str, str]:
    """Return the use of the network by a command, if callgate understands all of it."""
    from callgate.policy.installers import GIT, installer, reader  # lazy: for commands  # noqa: PLC0415

    if (manager := installer(command)) is not None:
        return {"installs": manager}
    program = reader(command)
    host = connection.entry.removeprefix("private:")
    if program is None or (program == GIT and (host not in remotes or _is_metadata(connection))):
        return {}
    return {"reads": program}


def _is_metadata(connection: Connection) -> bool:
    return _reaches(connection.address or connection.entry) == _METADATA


def _read_remotes(workspace: str) -> frozenset[str]:
    """Return the hosts of a repository's remotes, as connections name them."""
    try:
        path = os.path.join(workspace, ".git", "config")
        with open(path, "rb", opener=_open_without_waiting) as file:
            text = file.read(_LARGEST_CONFIG).decode("utf-8", "replace")
    except OSError:
        return frozenset()
    return frozenset(filter(None, map(_host_of_remote, _REMOTE_URL.findall(text))))


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _host_of_remote(url: str) -> str | None:
    found = _REMOTE_HOST.match(url)
    if found is None:
        return None
    scheme, host = found["scheme"], found["host"] or found["scp"]
    port = found["port"] or {"https": "", "http": "", "git": "9418"}.get(scheme or "ssh", "22")
    return f"{host}:{port}".lower() if port not in ("", "80", "443") else host.lower()


def _purpose(connection: Connection, label: str) -> str:
    program = _quoted(connection.program) if connection.program else "A program"
    return f"{program} of {_quoted(label)} connects to a host that nothing lists."


def _quoted(text: str) -> str:
    """Quote a text that the command determines, so that it cannot pass for ours."""
    return msgspec.json.encode(summarize(redact(text), limit=_LONGEST_LABEL)).decode()


def _arguments(connection: Connection, call: ToolCall, use: Mapping[str, str]) -> dict[str, Any]:
    address = connection.address or connection.entry
    values = {
        "host": connection.entry,
        "port": connection.port,
        "address": connection.address,
        "reaches": _reaches(address),
        "program": connection.program,
        "call": call.id,
        **use,
    }
    return {name: value for name, value in values.items() if value is not None}


def _reaches(text: str) -> str | None:
    """Return a warning about an address; None for a name or a public address."""
    try:
        host, _ = allowed_hosts.split(text)
    except ValueError:
        return None
    if not allowed_hosts.is_address(host) or allowed_hosts.is_public(host):
        return None
    if allowed_hosts.is_metadata(host):
        return _METADATA
    return "this machine or the network around it"


def _is_of(call: ToolCall, name: str) -> bool:
    """Whether a call uses a tool of the host or server, in either spelling."""
    tool = call.requested_tool
    return tool.startswith((f"{name}/", f"{name.replace('.', '__')}__"))


def _advice(entry: str) -> str:
    return (
        f' To allow it, add a rule: decision = "allow", tool = "{CONNECT_HOST}",'
        f' arguments = {{ host = "{entry}" }}.'
    )
