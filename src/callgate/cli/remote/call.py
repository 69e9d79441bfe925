"""`callgate call` through a running instance: the same output, and in a fraction of the time.

    find one -> list_tools: does it serve this directory? -> tool_call -> events -> tool_result
       |                |                                         |
       +----------------+-- no: a runtime of our own              +-- lost: an error, never a
                                                                      second try

A call is made once. Until the line with it has left us as a whole, and where the instance says
that it did not take it, somebody else may make it; after that nobody may. An instance that was
named by hand is never replaced: what it cannot do is an error.
"""

from __future__ import annotations

import os
import sys

from callgate.cli.arguments import read_arguments
from callgate.cli.remote.connection import (
    ConnectionLost,
    FrameTooLong,
    InstanceConnection,
    StopSignals,
    UnexpectedPeer,
)
from callgate.cli.remote.handshake import (
    InstanceDeclined,
    greet,
    problem,
    settings_of,
    through,
    workspace_of,
)
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import answered_by_words, has_terminal, is_terminal, safe, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from callgate.cli.ui.progress_line import ProgressLine

PATIENCE_S = 30.0
"""After how long a silence it is asked whether it still lives, and how long it has then."""
_MOST_MS = 86_400_000
_LONGEST_NAME = 128
_REQUESTED, _RESOLVED = "tool.confirmation_requested", "tool.confirmation_resolved"
_CALL, _ASK = "call", "ask"
"""Our ids of a call, and of what follows a question; a number comes behind the second."""


def call(options: Any) -> int | None:
    """Make a call through an instance; the exit code. None: none takes it, and none was named."""
    refuse_within_a_call()
    return through(options, _call)


def _call(connection: InstanceConnection, path: str, options: Any, *, named: bool) -> int:
    try:
        return RemoteCall(connection, path, options, named=named).run()
    except Interrupted as interrupt:
        return interrupt.exit_code


def refuse_within_a_call() -> None:
    """`nested_calls` decides; it is loaded only where this process looks as if it might."""
    marked = bool(os.environ.get("CALLGATE_CALL"))
    if sys.platform == "linux" and not marked:
        import resource  # lazy: only on Linux  # noqa: PLC0415

        soft, hard = resource.getrlimit(10)  # RLIMIT_LOCKS: see `sandbox.processes.command_marks`
        marked = soft != hard or soft != resource.RLIM_INFINITY
    if marked:
        from callgate.cli import nested_calls  # lazy: see above  # noqa: PLC0415

        nested_calls.refuse_within_a_call("callgate call")


class Interrupted(Exception):
    """A second signal ended the command before the call had ended."""

    def __init__(self, signal: int) -> None:
        self.exit_code = 128 + signal


class RemoteCall:
    """One call over one connection."""

    def __init__(
        self, connection: InstanceConnection, path: str, options: Any, *, named: bool
    ) -> None:
        self.connection = connection
        self.options = options
        self.tool = options.words[0]
        self.arguments: Any = {}
        self.mode: str | None = options.mode
        self._path = path
        self._named = named
        self._schema: dict[str, Any] | None = None
        self._policy: str | None = None
        self._streamed = False
        self._heard = False
        """Something was said of the call, so it was taken."""
        self._questions = 0
        self._waiting: ProgressLine | None = None
        """At a terminal: what runs, and since when."""

    def run(self) -> int:
        limit_ms = self._limit_ms()
        self._greet()
        self._read_arguments()
        with StopSignals() as stops:
            try:
                self._send(limit_ms)
                self._show_waiting()
                frame = self._until_the_end(stops)
            except (ConnectionLost, FrameTooLong) as error:
                raise problem(
                    f"the instance at {self._path} went away during the call: {error}",
                    "protocol_error" if isinstance(error, UnexpectedPeer) else "host_unavailable",
                    "instance_lost",
                    "Whether it ran is on record: callgate audit tail, callgate events.",
                ) from None
            finally:
                self._hide_waiting()
            return self._show(frame, stops.first)

    # Before the call.

    def _limit_ms(self) -> int | None:
        """The time limit as the protocol has it; and whether we can be asked for at all."""
        given = self.options.timeout
        limit = None if given is None else round(given * 1000)
        if limit is not None and not 1 <= limit <= _MOST_MS:
            raise InstanceDeclined(
                "--timeout: an instance takes a millisecond to a day", "validation_error"
            )
        if not 1 <= len(self.tool) <= _LONGEST_NAME:
            raise InstanceDeclined("a name of a tool has 1 to 128 characters", "validation_error")
        return limit

    def _greet(self) -> None:
        """Learn under which mode the directory is served, and what the tool takes."""
        names = list(dict.fromkeys([self.tool, self.tool.replace("-", "_")]))
        answer = greet(self.connection, self._path, self.options, named=self._named, names=names)
        self.mode = answer.get("mode")
        self._policy = settings_of(answer)["version"]
        for tool in answer["tools"][:1]:
            self.tool, self._schema = tool["name"], tool["inputSchema"]

    def _read_arguments(self) -> None:
        try:
            read = read_arguments(self.options.words[1:], self.options.args, self._schema or {})
        except Exception as error:  # whichever it is, it is one of ours, with its class
            raise InstanceDeclined(
                str(error), getattr(error, "error_class", "parse_error")
            ) from error
        if not isinstance(read, dict):
            raise InstanceDeclined("arguments are an object", "validation_error")
        self.arguments = read

    # The call.

    def _send(self, limit_ms: int | None) -> None:
        info = {"caller": "cli", "cwd": workspace_of(self.options)}
        if "TRACEPARENT" in os.environ:
            info["traceparent"] = os.environ["TRACEPARENT"][:512]
        call = {
            "type": "tool_call",
            "protocol": 1,
            "requestId": _CALL,
            "toolName": self.tool,
            "arguments": self.arguments,
            "clientInfo": info,
            "whole": True,
        }
        if limit_ms is not None:
            call["timeoutMs"] = limit_ms
        watch = {
            "type": "subscribe",
            "protocol": 1,
            "requestId": "watch",
            "confirmer": True,
            "types": [_REQUESTED, _RESOLVED],
        }
        try:
            self.connection.send(*([watch] if self._someone_answers() else []), call)
        except (ConnectionLost, FrameTooLong, ValueError) as error:
            raise InstanceDeclined(
                f"the call could not be sent: {error}", "host_unavailable"
            ) from None

    def _someone_answers(self) -> bool:
        """Whether a question would find anybody: `--yes`, `--wait`, or a person here."""
        if self.options.yes or self.options.wait:
            return True
        return not self.options.no_input and has_terminal()

    def _show_waiting(self) -> None:
        if not is_terminal(sys.stderr) or self.options.verbose or self.options.quiet:
            return
        if self._waiting is None:
            from callgate.cli.ui.progress_line import ProgressLine  # lazy: only at a terminal  # noqa: PLC0415

            self._waiting = ProgressLine(wanted=True)
        self._waiting.start(self.tool)

    def _hide_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()

    def _until_the_end(self, stops: StopSignals) -> dict[str, Any]:
        asked_if_alive = False
        while True:
            frame = self.connection.next()
            if frame is not None:
                if frame.get("type") == "tool_result" and frame.get("requestId") == _CALL:
                    return frame
                self._take(frame, stops)
                continue
            received = self.connection.wait(PATIENCE_S, stops.descriptor)
            while (number := stops.take()) is not None:
                self._stop(number, again=stops.count > 1)
            if not received and asked_if_alive:
                raise ConnectionLost("it says nothing")
            if not received:
                self.connection.send({"type": "check_alive", "protocol": 1, "requestId": "alive"})
            asked_if_alive = not received

    def _stop(self, number: int, *, again: bool) -> None:
        self._hide_waiting()
        if again:
            raise Interrupted(number)
        say("callgate: stopping the call")
        self._cancel()

    def _cancel(self) -> None:
        self.connection.send({"type": "cancel_tool_call", "protocol": 1, "requestId": _CALL})

    def _take(self, frame: dict[str, Any], stops: StopSignals) -> None:
        """Handle a frame that comes before the result. Unknown types are ignored."""
        match frame.get("type"):
            case "tool_event":
                self._heard = True
                self._live(_object(frame.get("event")))
            case "event":
                self._heard = True
                self._request_question(_object(frame.get("event")))
            case "confirmations_list":
                self._answer(frame, stops)
            case "error" if str(frame.get("requestId")).startswith(_ASK):
                say(f"callgate: the question cannot be shown: {frame.get('message')}")
                self._cancel()
            case "error" if not self._heard and frame.get("requestId") in (None, _CALL):
                raise InstanceDeclined(str(frame.get("message")), "protocol_error")

    def _live(self, event: dict[str, Any]) -> None:
        if not self.options.verbose:
            return
        match event.get("kind"):
            case "partial_text" if event.get("stream") is not None:
                self._streamed = True
                sys.stderr.write(safe(str(event.get("text"))))
                sys.stderr.flush()
            case "progress":
                fraction = event.get("fraction")
                percent = f" {fraction:.0%}" if isinstance(fraction, float | int) else ""
                say(f"progress:{percent} {event.get('message') or ''}".rstrip())

    # Questions.

    def _request_question(self, event: dict[str, Any]) -> None:
        if event.get("type") != _REQUESTED:
            return
        self._hide_waiting()
        id = _object(event.get("payload")).get("confirmation_request_id")
        if self.options.wait and not self.options.yes:
            say(f"callgate: waiting for an answer: callgate confirmations allow {id}")
            return
        self._questions += 1
        self.connection.send(
            {
                "type": "list_confirmations",
                "protocol": 1,
                "confirmationId": id,
                "requestId": f"{_ASK}{self._questions}",
            }
        )

    def _answer(self, frame: dict[str, Any], stops: StopSignals) -> None:
        from callgate.cli.remote import confirmations  # lazy: heavy, only where one is asked  # noqa: PLC0415

        for question in confirmations.listed(frame):
            try:
                confirmations.answer(self, question, stops.descriptor)
            except confirmations.AnswerNotDelivered as error:
                say(f"callgate: the question cannot be answered here: {error}")
                self._cancel()
            self._show_waiting()

    # The end.

    def _show(self, frame: dict[str, Any], signal: int | None) -> int:
        options, result = self.options, frame.get("whole")
        if isinstance(result, dict):
            result = frame["whole"] = _with_value(result)
        if isinstance(result, dict) and _is_plain(result):
            if options.json:
                print_json({"ok": True, **result, "answered_by": self._answered_by})
            elif not (self._streamed and is_terminal(sys.stdout) and is_terminal(sys.stderr)):
                text = "\n".join(block["text"] for block in result["content"])
                if text or not options.quiet:
                    print_text(text or "ok")
            if not options.verbose:
                return 0
            did, ms = self._answered_by, f"{result['duration_ms']:.0f} ms"
            say(f"callgate: {answered_by_words(did)}, call {result['call_id']}, {ms}")
            return 0
        from callgate.cli.remote.results import ended  # lazy: the same  # noqa: PLC0415
        from callgate.cli.ui.call_results import show  # lazy: not for a plain text  # noqa: PLC0415

        return show(
            ended(frame, self.tool, signal),
            self._schema,
            options,
            streamed=self._streamed,
            answered_by=self._answered_by,
        )

    @property
    def _answered_by(self) -> dict[str, str | None]:
        return {"instance": self._path, "policy": self._policy}


def _with_value(result: dict[str, Any]) -> dict[str, Any]:
    """A value that is the text of the only block was not sent twice."""
    blocks = result.get("content")
    if "value" in result or not isinstance(blocks, list) or len(blocks) != 1:
        return result
    filled = {}
    for key, each in result.items():
        filled[key] = each
        if key == "content":
            filled["value"] = blocks[0].get("text") if isinstance(blocks[0], dict) else None
    return filled


def _is_plain(result: dict[str, Any]) -> bool:
    """It went well, and there is text to show and nothing beside it."""
    blocks = result.get("content")
    if result.get("ok") is not True or result.get("diagnostics") or not isinstance(blocks, list):
        return False
    typed = (
        isinstance(result.get("call_id"), str),
        isinstance(result.get("duration_ms"), float | int),
    )
    return all(typed) and all(map(_is_text, blocks))


def _is_text(block: Any) -> bool:
    is_text = isinstance(block, dict) and block.get("type") == "text"
    return is_text and isinstance(block.get("text"), str)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
