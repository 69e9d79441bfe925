"""`callgate call` through a running instance: the same output in a fraction of the time.

    find one -> list_tools: does it serve this directory? -> tool_call -> events -> tool_result
       |                |                                         |
       +----------------+-- no: a runtime in this process         +-- lost: an error, never a
                                                                      retry

A call runs at most once. Another runtime may make it only if its line was not sent completely, or
if the instance declined it. An instance that the user named is never replaced: its failure is an
error.
"""

from __future__ import annotations

import os
import sys

from callgate.cli.arguments import read_arguments
from callgate.cli.connection import (
    ConnectionLost,
    FrameTooLong,
    InstanceConnection,
    InstanceDeclined,
    StopSignals,
    UnexpectedPeer,
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

    from callgate.cli.logs import ProgressLine

PATIENCE_S = 30.0
"""Silence before the instance is checked for liveness, and the time limit of that check."""
_MOST_MS = 86_400_000
_LONGEST_NAME = 128
_REQUESTED, _RESOLVED = "tool.confirmation_requested", "tool.confirmation_resolved"
_CALL, _ASK = "call", "ask"
"""Request ids of the call and of requests about its questions, which add a number."""


def call(options: Any) -> int | None:
    """Make a call through an instance, and return the exit code.

    Return None if no instance accepts the call and none was named.
    """
    refuse_within_a_call()
    return through(options, _call)


def _call(connection: InstanceConnection, path: str, options: Any, *, named: bool) -> int:
    try:
        return RemoteCall(connection, path, options, named=named).run()
    except Interrupted as interrupt:
        return interrupt.exit_code


def refuse_within_a_call() -> None:
    """Refuse within a call. Imports `nested_calls` only if this process has a mark."""
    marked = bool(os.environ.get("CALLGATE_CALL"))
    if sys.platform == "linux" and not marked:
        import resource  # lazy: only on Linux  # noqa: PLC0415

        soft, hard = resource.getrlimit(10)  # RLIMIT_LOCKS: see `sandbox.processes.command_marks`
        marked = soft != hard or soft != resource.RLIM_INFINITY
    if marked:
        from callgate.cli import nested_calls  # lazy: see above  # noqa: PLC0415

        nested_calls.refuse_within_a_call("callgate call")


class Interrupted(Exception):
    """A second signal ended the command before the end of the call."""

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
        self._problem: str | None = None
        """A mistake in the present settings."""
        self._streamed = False
        self._heard = False
        """An event of the call arrived, so the instance accepted it."""
        self._questions = 0
        self._waiting: ProgressLine | None = None
        """At a terminal: the running tool and its time."""

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
                    f"the connection to {self._path} broke during the call: {error}",
                    "protocol_error" if isinstance(error, UnexpectedPeer) else "host_unavailable",
                    "instance_lost",
                    "callgate audit tail shows whether the call ran.",
                ) from None
            finally:
                self._hide_waiting()
            code = self._show(frame, stops.first)
            self._warn(frame)
            return code

    # Before the call.

    def _limit_ms(self) -> int | None:
        """Return the time limit in ms. Raises `InstanceDeclined` if it or the name is invalid."""
        given = self.options.timeout
        limit = None if given is None else round(given * 1000)
        if limit is not None and not 1 <= limit <= _MOST_MS:
            raise InstanceDeclined(
                "--timeout must be between a millisecond and a day", "validation_error"
            )
        if not 1 <= len(self.tool) <= _LONGEST_NAME:
            raise InstanceDeclined("a tool name has 1 to 128 characters", "validation_error")
        return limit

    def _greet(self) -> None:
        """Request the mode of the directory and the schema of the tool."""
        names = list(dict.fromkeys([self.tool, self.tool.replace("-", "_")]))
        answer = greet(self.connection, self._path, self.options, named=self._named, names=names)
        self.mode = answer.get("mode")
        settings = settings_of(answer)
        self._policy, self._problem = settings["version"], settings["problem"]
        for tool in answer["tools"][:1]:
            self.tool, self._schema = tool["name"], tool["inputSchema"]

    def _read_arguments(self) -> None:
        try:
            read = read_arguments(self.options.words[1:], self.options.args, self._schema or {})
        except Exception as error:  # a `ToolError`, whose class is expensive to import
            raise InstanceDeclined(
                str(error), getattr(error, "error_class", "parse_error")
            ) from error
        if not isinstance(read, dict):
            raise InstanceDeclined("the arguments must be an object", "validation_error")
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
        """Whether a question can be answered: by `--yes`, `--wait` or a person here."""
        if self.options.yes or self.options.wait:
            return True
        return not self.options.no_input and has_terminal()

    def _show_waiting(self) -> None:
        if not is_terminal(sys.stderr) or self.options.verbose or self.options.quiet:
            return
        if self._waiting is None:
            from callgate.cli.logs import ProgressLine  # lazy: only at a terminal  # noqa: PLC0415

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
                raise ConnectionLost("no answer arrived")
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
                say(f"callgate: the question is not readable: {frame.get('message')}")
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
        from callgate.cli import remote_confirmations  # lazy: heavy, only where one is asked  # noqa: PLC0415

        for question in remote_confirmations.listed(frame):
            try:
                remote_confirmations.answer(self, question, stops.descriptor)
            except remote_confirmations.AnswerNotDelivered as error:
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
        from callgate.cli.ui.call_results import ended, show  # lazy: not for a plain text  # noqa: PLC0415

        return show(
            ended(frame, self.tool, signal),
            self._schema,
            options,
            streamed=self._streamed,
            answered_by=self._answered_by,
        )

    def _warn(self, frame: dict[str, Any]) -> None:
        """Warn of a mistake in the settings, unless the call was refused because of it."""
        error = _object(_object(frame.get("whole")).get("error"))
        if self._problem is None or error.get("reason") == "settings_invalid":
            return
        from callgate.cli.ui.provenance import warn_of_instance_settings  # lazy: few have one  # noqa: PLC0415

        warn_of_instance_settings(self._problem)

    @property
    def _answered_by(self) -> dict[str, str | None]:
        return {"instance": self._path, "policy": self._policy}


def _with_value(result: dict[str, Any]) -> dict[str, Any]:
    """Add the value that the instance omits because it equals the only block's text."""
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
    """Whether the call succeeded, and its result is only text."""
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
