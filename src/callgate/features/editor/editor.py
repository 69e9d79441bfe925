"""Requests to an editor: its text files, its terminals, and the approval of a call.

    read, write   fs/read_text_file, fs/write_text_file
    a command     terminal/create -> wait_for_exit -> output -> release
                                        | stopped
                                        +-> kill -> wait_for_exit -> output -> release

A terminal is always released. When callgate stops, it does not wait for the release. An error from
the editor fails the tool; only a missing file has a separate error.

The approval appears on the card of the call, with all arguments. If they are too long for the
card, the call is refused without a question. The first answer counts, from the editor, the
dashboard or a terminal, and withdraws the question elsewhere. Only the options that allow the call
approve it; every other answer denies it. If the user stops the turn instead, the question gets no
answer.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Self

from callgate.core.commands import CONNECT_HOST, GRACE_S, Command, Exit, OnOutput
from callgate.core.errors import ToolExecutionError
from callgate.core.tasks import start_task
from callgate.core.texts import code, fenced, visible_lines
from callgate.dispatch.permission.confirmations import (
    Answer,
    Confirmation,
    Scope,
    destinations_text,
    preview_heading,
    requester_text,
)
from callgate.features.editor.contents import change, text
from callgate.features.editor.peer import EditorPeer, PeerGone
from callgate.policy.rules import Outcome, Proposal
from callgate.protocol.acp.client_requests import (
    METHODS,
    Cancelled,
    CreateTerminal,
    ExitStatus,
    KillTerminal,
    Output,
    PermissionAnswer,
    PermissionOption,
    ReadTextFile,
    ReleaseTerminal,
    RequestPermission,
    TerminalMade,
    TerminalOutput,
    TextFile,
    Variable,
    WaitForExit,
    WriteTextFile,
)
from callgate.protocol.acp.initialize import Sent, read_result
from callgate.protocol.acp.updates import RESOURCE_NOT_FOUND, Shown, ToolContent, ToolFields
from callgate.protocol.jsonrpc import RpcError, shown
from callgate.protocol.strict_json import Unsendable

MOST_OUTPUT = 1024 * 1024
"""Maximum number of bytes that the editor stores of a command's output."""
_PATIENCE_S = 10.0
"""Time limit for the editor to read, kill or release a terminal."""

_EDITOR_GONE = "editor_gone"

_log = logging.getLogger("callgate.acp")


class EditorFiles:
    """`core.environment.TextFiles` over the wire."""

    def __init__(self, peer: EditorPeer, session_id: str, *, reads: bool, writes: bool) -> None:
        self._peer = peer
        self._session = session_id
        self.reads = reads
        self.writes = writes

    async def read(self, path: str, line: int | None, limit: int | None) -> str:
        request = ReadTextFile(session_id=self._session, path=path, line=line, limit=limit)
        found: TextFile = await _ask(self._peer, request)
        return found.content

    async def write(self, path: str, content: str) -> None:
        request = WriteTextFile(session_id=self._session, path=path, content=content)
        await _ask(self._peer, request)


class EditorTerminals:
    """A `Launcher` whose commands run in terminals of the editor."""

    def __init__(
        self,
        peer: EditorPeer,
        session_id: str,
        opened: Callable[[str, str], None],
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`opened` receives each call and its terminal; `start_task` runs work to its end."""
        self._peer = peer
        self._session = session_id
        self._opened = opened
        self._start_task = start_task

    async def start(self, command: Command, on_output: OnOutput) -> EditorTerminal:
        request = CreateTerminal(
            session_id=self._session,
            command=command.argv[0],
            args=list(command.argv[1:]),
            env=[Variable(name=name, value=value) for name, value in command.env.items()],
            cwd=command.cwd,
            output_byte_limit=MOST_OUTPUT,
        )
        creation: asyncio.Future[TerminalMade] = start_task(_ask(self._peer, request))
        try:
            id = (await asyncio.shield(creation)).terminal_id
        except asyncio.CancelledError:
            self._start_task(
                self._release_late(creation, on_output)
            )  # a terminal that is created now must be released
            raise
        self._opened(command.call or "", id)
        return EditorTerminal(self._peer, self._session, id, on_output)

    async def _release_late(
        self, creation: asyncio.Future[TerminalMade], on_output: OnOutput
    ) -> None:
        try:
            id = (await creation).terminal_id
        except ToolExecutionError:
            return
        await EditorTerminal(self._peer, self._session, id, on_output).release()


class EditorTerminal:
    """A command in a terminal of the editor; `core.commands.Running`."""

    def __init__(self, peer: EditorPeer, session_id: str, id: str, on_output: OnOutput) -> None:
        self._peer = peer
        self._ids: dict[str, Any] = {"session_id": session_id, "terminal_id": id}
        self._on_output = on_output
        self._waiting: asyncio.Future[ExitStatus] | None = None
        self._killing: asyncio.Future[None] | None = None
        self._ended: Exit | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ended is None:  # the waiting task was cancelled
            self.stop()
        if self._killing is not None:
            await asyncio.wait([self._killing])
        await asyncio.shield(start_task(self.release()))

    async def wait(self) -> Exit:
        """Return the command's exit, after all of its output was passed on."""
        self._waiting = start_task(_ask(self._peer, WaitForExit(**self._ids)))
        try:
            await asyncio.wait([self._waiting])
            status = None if self._waiting.cancelled() else self._waiting.result()
        finally:
            self._waiting.cancel()
        if self._killing is not None:
            await asyncio.wait([self._killing])
        output: Output = await _ask(self._peer, TerminalOutput(**self._ids), _PATIENCE_S)
        if output.truncated:
            self._on_output("stdout", _CUT)
        self._on_output("stdout", output.output.encode("utf-8", "replace"))
        status = status or output.exit_status or ExitStatus()
        signal = _number(status.signal)
        self._ended = Exit(
            code=status.exit_code if signal is None else None,  # a signal is not a success
            signal=signal,
            stopped=self._killing is not None,
        )
        return self._ended

    def stop(self, grace: float = GRACE_S) -> bool:
        """Kill the command. The wait for its end is limited."""
        if self._ended is not None:
            return False
        if self._killing is None:
            self._killing = start_task(self._tell(KillTerminal(**self._ids)))
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._give_up)
        return True

    def _give_up(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def release(self) -> None:
        await self._tell(ReleaseTerminal(**self._ids))

    async def _tell(self, request: Sent) -> None:
        try:
            await _ask(self._peer, request, _PATIENCE_S)
        except ToolExecutionError as error:
            if error.reason == _EDITOR_GONE:  # it sends nothing any more, but it may still read
                self._peer.request_unheard(METHODS[type(request)][0], request)
            else:
                _log.warning("%s", error)


_CUT = b"[the editor kept only the end of the output]\n"


async def _ask(peer: EditorPeer, request: Sent, limit_s: float | None = None) -> Any:
    """Return the editor's answer. Raises `FileNotFoundError` if the file does not exist."""
    method, answer = METHODS[type(request)]
    try:
        async with asyncio.timeout(limit_s):
            return read_result(answer, await peer.request(method, request))
    except RpcError as error:
        if error.code == RESOURCE_NOT_FOUND and method.startswith("fs/"):
            raise FileNotFoundError from error
        message = f"The editor refused {method}: {shown(error.message, 200)} ({error.code})."
        raise ToolExecutionError(message, reason="editor_failed") from error
    except Unsendable as error:
        message = f"The message cannot be sent to the editor: {error}."
        raise ToolExecutionError(message, reason="editor_failed") from error
    except TimeoutError as error:
        message = f"The editor did not answer {method}."
        raise ToolExecutionError(message, reason="editor_failed") from error
    except PeerGone as error:
        raise ToolExecutionError("The editor has disconnected.", reason=_EDITOR_GONE) from error


def _number(value: str | int | None) -> int | None:
    """Return the number of a signal; -1 if this system does not have it."""
    if not value:
        return None
    name = str(value)
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
    except KeyError:
        return int(name) if name.isdecimal() and len(name) < 4 else -1


_ADVICE = ", or raise longest_arguments in [acp]"
_ANSWERS = {
    "allow_once": (Outcome.ALLOW, Scope.ONCE),
    "allow_run": (Outcome.ALLOW, Scope.RUN),
    "allow_destination": (Outcome.ALLOW, Scope.DESTINATION),
    "allow_always": (Outcome.ALLOW, Scope.SESSION),
    "reject_once": (Outcome.DENY, Scope.ONCE),
    "reject_always": (Outcome.DENY, Scope.SESSION),
}


async def ask(
    peer: EditorPeer,
    session_id: str,
    question: Confirmation,
    fields: ToolFields,
    cancel: Callable[[], None],
    by: str,
) -> Answer:
    """Ask the editor's user for approval. `session_id` is the session of the editor; `cancel`
    stops its turn.
    """
    offered = options_for(question)
    if question.session_id != session_id:  # answers to a sub-agent's questions are not remembered
        offered = [each for each in offered if each.kind in ("allow_once", "reject_once")]
    request = RequestPermission(session_id=session_id, tool_call=fields, options=offered)
    method, answer = METHODS[RequestPermission]
    try:
        response = read_result(answer, await peer.request(method, request))
    except PeerGone:  # the turn is being stopped
        return await _nobody()
    except RpcError as error:
        _log.warning("the question about %s was not answered: %s", question.tool, error)
        reason = f"the editor could not show the question: {shown(error.message)}"
        return Answer(decision=Outcome.DENY, reason=reason, by=by)
    assert isinstance(response, PermissionAnswer)
    if isinstance(response.outcome, Cancelled):
        cancel()
        return await _nobody()
    chosen = getattr(response.outcome, "option_id", "")
    if (pattern := _saved_patterns(question).get(chosen)) is not None:
        return Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS, pattern=pattern.pattern, by=by)
    decision, scope = _ANSWERS.get(chosen, (Outcome.DENY, Scope.ONCE))
    return Answer(decision=decision, scope=scope, by=by)


def _saved_patterns(question: Confirmation) -> dict[str, Proposal]:
    """Return the rules that an answer may save, by option id; none if no useful pattern exists.

    Each option shows everything that its rule covers.
    """
    offered = [each for each in question.proposals if shown(each.covers) == each.covers]
    if len(offered) < 2 and question.tool != CONNECT_HOST:
        return {}
    return {f"save_{number}": each for number, each in enumerate(offered, 1)}


async def _nobody() -> Answer:
    """Wait until the question is withdrawn, without an answer."""
    never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return await never


def options_for(question: Confirmation) -> list[PermissionOption]:
    """Return the options, with the narrow answer for the session before the wide one."""
    always = f"any {question.tool} in this session"
    denied = always if Scope.SESSION in question.scopes else f"{question.tool} to this host"
    there = f"Always allow {question.tool} to {shown(destinations_text(question))}"
    optional = (
        (Scope.RUN, "allow_run", "Allow until the process that asks has ended"),
        (Scope.DESTINATION, "allow_destination", there),
        (Scope.SESSION, "allow_always", f"Always allow {always}"),
    )
    return [
        PermissionOption(option_id="allow_once", name="Allow", kind="allow_once"),
        *(
            PermissionOption(option_id=id, name=name, kind="allow_always")
            for scope, id, name in optional
            if scope in question.scopes
        ),
        *(
            PermissionOption(
                option_id=id, name=f"Save a rule here: {each.covers}", kind="allow_always"
            )
            for id, each in _saved_patterns(question).items()
        ),
        PermissionOption(option_id="reject_once", name="Deny", kind="reject_once"),
        PermissionOption(
            option_id="reject_always", name=f"Always deny {denied}", kind="reject_always"
        ),
    ]


def content_of(question: Confirmation, longest: int) -> list[ToolContent]:
    """Return the content of a question: changes, all arguments, the preview, caller, sandbox and
    reason.

    Raises if the arguments are longer than `longest`. Editors render the texts as Markdown, so
    foreign text is in code fences, where it is visible and inactive.
    """
    from callgate.socket.queries import whole_arguments  # lazy: many sessions ask nothing  # noqa: PLC0415

    arguments = whole_arguments(question, longest, advice=_ADVICE)
    paragraphs = [f"Arguments:\n\n{fenced(arguments)}" if arguments else "No arguments."]
    if question.preview and not question.diffs:
        paragraphs.append(f"Preview, {preview_heading(question)}:\n\n{fenced(question.preview)}")
    about = [visible_lines(question.why), f"Asked by: {code(requester_text(question))}"]
    about += [f"Value: {code(line)}" for line in question.provenance_lines]
    if question.sandbox is not None:
        about.append(f"Runs in: {visible_lines(question.sandbox)}.")
    paragraphs.append("\n\n".join(about))
    return [*map(change, question.diffs), *(Shown(content=text(each)) for each in paragraphs)]
