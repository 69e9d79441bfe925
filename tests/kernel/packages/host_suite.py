"""What every host must do, whatever its language: scenarios over a real process.

A scenario takes `start`, which starts a host with the plugin of a name. A plugin is a file in
`plugins/`, once for each language, and does the same in each:

    echo      echo: its arguments. grow {size}: a text of so many x
    noisy     prints by every means, also forged answers, when it is imported, in `init` and
              `get_tool_schemas`, and in shout, which gives what it could read from stdin
    stream    count {parts, size}: emits {"n": 0}, {"n": 1}, ..., each with a `pad` of `size` x
              if that is given, and gives their number
              say: progress, log, output and an event of the type "odd" with [1]
              leave: keeps its `emit`; haunt: uses those kept, and gives what they returned
    state     `init` gives {"count": config.start or 0}. add {by}: changes the state's count and
              gives it. reset: the state is {}. fail: changes the count and raises
    failing   raise {type, message}, reject {message} (the same, asynchronously), see {error}:
              a failure of its own. unsayable {kind}: a value that JSON does not have; emit
              {kind}: the same as the payload of a part
    slow      hold {key}: emits "begun" and gives the value of release {key, value}
              wait: emits "begun", waits to be cancelled, emits "stopped" and fails
              ignore: emits "begun" and never ends
    optional  every optional method and four tools, one in each spelling
    reach     copy, bytes, everything, many and refused ask the runtime back
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

WAIT_S = 60.0
"""Longest wait for anything: a host that takes longer hangs."""
MAX_LINE = 8 * 1024 * 1024
MOST_UNREAD = 100
"""Lines: with more than these unread, nothing more is read from the host."""
MOST_MEMORY = 128 * 1024 * 1024
"""Bytes that a host may use at its peak while 117 MiB wait for a reader that lags."""

Frame = dict[str, Any]


class Driver:
    """One host process, and the least of a runtime."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines: queue.Queue[bytes | None] = queue.Queue(MOST_UNREAD)
        self.stderr = b""
        self.asked: list[Frame] = []
        """What the host asked for, in its order."""
        self.replies: Callable[[Frame], Frame] = lambda asked: {}
        """What is answered to that: `ok` and the rest."""
        self._last = 0
        self._leaving = False
        self._answers: dict[str | None, tuple[list[Any], Frame]] = {}
        self._events: dict[str, list[Any]] = {}
        out, err = self.process.stdout, self.process.stderr
        assert out is not None and err is not None
        self._threads = [
            threading.Thread(target=self._read_out, args=(out,), daemon=True),
            threading.Thread(target=self._read_err, args=(err,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_out(self, stream: IO[bytes]) -> None:
        for line in stream:
            if not self._leaving:
                self.lines.put(line)
        if not self._leaving:
            self.lines.put(None)

    def _read_err(self, stream: IO[bytes]) -> None:
        while data := stream.read1(65536):  # type: ignore[attr-defined]
            self.stderr += data

    def raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, frame: Frame) -> None:
        self.raw(json.dumps(frame, ensure_ascii=False).encode() + b"\n")

    def ask(self, method: str, **params: Any) -> str:
        """The id of a request that was sent."""
        self._last += 1
        self.send({"v": 1, "id": str(self._last), "method": method, "params": params})
        return str(self._last)

    def line(self) -> bytes | None:
        """The next line of its stdout; None when that has ended."""
        return self.lines.get(timeout=WAIT_S)

    def frame(self) -> Frame:
        line = self.line()
        assert line is not None, f"the host is gone: {self.stderr.decode()}"
        frame: Frame = json.loads(line)
        assert frame["v"] == 1
        return frame

    def event(self, id: str) -> Any:
        """The next event, which is of this call."""
        frame = self.frame()
        assert (frame["id"], sorted(frame)) == (id, ["event", "id", "v"])
        return frame["event"]

    def outcome(self, id: str | None) -> tuple[list[Any], Frame]:
        """The events and the answer of a request; what the host asks meanwhile is answered."""
        while id not in self._answers:
            frame = self.frame()
            if "method" in frame:
                self.asked.append(frame)
                self.send({"v": 1, "id": frame["id"], **self.replies(frame)})
            elif "event" in frame:
                assert frame["id"] not in self._answers
                self._events.setdefault(frame["id"], []).append(frame["event"])
            else:
                assert frame["id"] is None or frame["id"] not in self._answers
                self._answers[frame["id"]] = (self._events.pop(frame["id"], []), frame)
        return self._answers.pop(id)

    def result(self, method: str, **params: Any) -> Frame:
        _, answer = self.outcome(self.ask(method, **params))
        assert answer["ok"] is True, answer
        return answer["result"]  # type: ignore[no-any-return]

    def failure(self, method: str, **params: Any) -> Frame:
        _, answer = self.outcome(self.ask(method, **params))
        assert answer["ok"] is False, answer
        return answer["error"]  # type: ignore[no-any-return]

    def execute(self, tool: str, state: Frame | None = None, **arguments: Any) -> str:
        return self.ask("execute_tool", tool_name=tool, arguments=arguments, state=state or {})

    def call(self, tool: str, state: Frame | None = None, **arguments: Any) -> tuple[list[Any], Any]:
        """The events and the result of a call that succeeds."""
        events, answer = self.outcome(self.execute(tool, state, **arguments))
        assert answer["ok"] is True, answer
        value = answer["result"]["value"]
        assert value["success"] is True
        return events, value["result"]

    def fail(self, tool: str, **arguments: Any) -> Frame:
        return self.failure("execute_tool", tool_name=tool, arguments=arguments, state={})

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        """Its exit code, once all that it wrote has been read."""
        code = self.process.wait(WAIT_S)
        for thread in self._threads:
            thread.join(WAIT_S)
        return code

    def leave(self) -> None:
        """However the test ended, the process is gone."""
        self._leaving = True
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(queue.Empty):  # room for what it said and nobody read
            self.lines.get_nowait()
        self.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what it never read
                stream.close()


Start = Callable[[str], Driver]


def _part(payload: Any) -> Frame:
    return {"type": "part", "payload": payload}


# --- lines ------------------------------------------------------------------------------------


def a_noisy_plugin_prints_to_stderr_alone(start: Start) -> None:
    host = start("noisy")
    assert host.result("init", config={})["state"] == {}
    assert len(host.result("get_tool_schemas", state={})["value"]) == 1
    assert host.call("shout") == ([], "")
    host.close()
    assert host.wait() == 0
    assert host.line() is None
    assert b"to stderr" in host.stderr
    assert host.stderr.count(b"forged") >= 4


def what_is_no_request_is_answered_once_and_the_host_goes_on(start: Start) -> None:
    host = start("echo")
    for line in (b"{", b"[]", b"null", b'{"v":1,"method":"init"}', b'{"v":1,"id":7,"method":"init"}', b"\xff"):
        host.raw(line + b"\n")
        _, answer = host.outcome(None)
        assert (answer["ok"], answer["error"]["type"]) == (False, "ProtocolError")
    host.raw(b"\n \r\n\t\n")
    assert host.call("echo", a=1) == ([], {"a": 1})


def another_version_is_a_protocol_error(start: Start) -> None:
    host = start("echo")
    for version in (0, 2, "1", None):
        host.send({"v": version, "id": "a", "method": "init", "params": {}})
        assert host.outcome("a")[1]["error"]["type"] == "ProtocolError"
    assert host.result("init", config={})["state"] == {}


def an_unknown_method_is_refused_and_the_host_goes_on(start: Start) -> None:
    host = start("echo")
    for method in ("nope", "constructor", "__proto__", "", "Init"):
        assert host.failure(method)["type"] == "MethodNotFound"
    assert host.result("init")["state"] == {}


def wrong_params_are_a_protocol_error(start: Start) -> None:
    host = start("echo")
    wrong: list[Any] = [None, [], "x", {"tool_name": "echo", "arguments": []}, {"tool_name": 5}, {}]
    for params in wrong:
        host.send({"v": 1, "id": "a", "method": "execute_tool", "params": params})
        assert host.outcome("a")[1]["error"]["type"] == "ProtocolError"


def an_id_in_flight_is_not_used_twice(start: Start) -> None:
    host = start("slow")
    held = host.execute("hold", key="k")
    assert host.event(held) == _part("begun")
    host.send({"v": 1, "id": held, "method": "get_tool_schemas"})
    assert host.outcome(None)[1]["error"]["type"] == "ProtocolError"
    host.call("release", key="k", value=1)
    assert host.outcome(held)[1]["result"]["value"] == {"success": True, "result": 1}


def texts_survive_whatever_is_in_them(start: Start) -> None:
    host = start("echo")
    text = 'a\n\r\t\x00"\\/\x7f \u0085 \u2028 \u2029 \ufeff \U0001f600 \u00e4 e\u0301 \u202e'
    odd: Frame = {"2": 1, "1": 2, "__proto__": {"a": 1}, "n": -1.5e-7, text: [text]}
    assert host.call("echo", **odd) == ([], odd)
    id = host.execute("echo", text=text)
    line = host.line()
    assert line is not None
    assert len(line.decode().splitlines()) == 1, "a line that some reader takes for two"
    assert json.loads(line)["id"] == id


def four_mebibytes_come_back(start: Start) -> None:
    host = start("echo")
    text = "\u00e4\u2028x" * (4 * 1024 * 1024 // 6)
    assert host.call("echo", text=text) == ([], {"text": text})


def a_line_too_long_is_refused_in_both_directions(start: Start) -> None:
    host = start("echo")
    host.raw(b'{"v":1,"id":"x","method":"init","params":{"config":{"a":"' + b"x" * MAX_LINE + b'"}}}\n')
    assert host.outcome(None)[1]["error"]["type"] == "ProtocolError"
    assert host.fail("grow", size=MAX_LINE)["type"] == "Unsendable"
    size = MAX_LINE - 200
    events, text = host.call("grow", size=size)
    assert (events, len(text)) == ([], size)


# --- calls ------------------------------------------------------------------------------------


def init_gives_a_state_and_says_what_the_host_answers(start: Start) -> None:
    host = start("state")
    result = host.result("init", config={"start": 5})
    assert result["state"] == result["value"] == {"count": 5}
    assert set(result["host"]["methods"]) >= {"init", "get_tool_schemas", "execute_tool", "cancel"}
    assert "get_tags" not in result["host"]["methods"]


def the_state_goes_round(start: Start) -> None:
    host = start("state")
    state = host.result("init", config={})["state"]
    other = host.result("init", config={"start": 10})["state"]
    for count in (2, 4):
        params = {"tool_name": "add", "arguments": {"by": 2}}
        result = host.result("execute_tool", **params, state=state)
        assert result == {"value": {"success": True, "result": count}, "state": {"count": count}}
        state = result["state"]
    assert host.call("add", other, by=1) == ([], 11)
    listed = host.result("get_tool_schemas", state=state)
    assert listed["state"] == {"count": 4}
    assert host.result("execute_tool", tool_name="reset", state=state)["state"] == {}
    _, failed = host.outcome(host.execute("fail", state))
    assert (failed["ok"], "result" in failed) == (False, False)


def a_failure_fails_its_call_alone(start: Start) -> None:
    host = start("failing")
    raised = host.fail("raise", type="ValidationError", message="no \u2028 such")
    assert (raised["type"], raised["detail"]) == ("ValidationError", "no \u2028 such")
    assert raised["detail"] in raised["stack"]
    assert host.fail("reject", message="later")["detail"] == "later"
    seen = host.result("execute_tool", tool_name="see", arguments={"error": "gone"}, state={})
    assert seen["value"] == {"success": False, "error": "gone"}
    assert host.fail("no_such_tool")["type"] == "UnknownTool"
    assert len(host.result("get_tool_schemas")["value"]) == 5


def what_json_does_not_have_is_a_failure(start: Start) -> None:
    host = start("failing")
    for kind in ("cycle", "deep", "deeper", "infinity", "nan", "object", "surrogate"):
        assert host.fail("unsayable", kind=kind)["type"] == "Unsendable", kind
        assert host.fail("emit", kind=kind)["type"] == "Unsendable", kind
    assert host.fail("reject", message="still there")["detail"] == "still there"


def answers_come_in_any_order(start: Start) -> None:
    host = start("slow")
    held = {key: host.execute("hold", key=key) for key in "abc"}
    for id in held.values():
        assert host.event(id) == _part("begun")
    order = "bca"
    for key in order:
        host.call("release", key=key, value=key)
        events, answer = host.outcome(held[key])
        assert (events, answer["result"]["value"]["result"]) == ([], key)


def a_cancelled_call_stops_and_both_are_answered(start: Start) -> None:
    host = start("slow")
    held = host.execute("hold", key="other")
    assert host.event(held) == _part("begun")
    waiting = host.execute("wait")
    assert host.event(waiting) == _part("begun")
    assert host.result("cancel", id=waiting)["value"] is True
    events, answer = host.outcome(waiting)
    assert (events, answer["error"]["type"]) == ([_part("stopped")], "Cancelled")
    assert host.result("cancel", id=waiting)["value"] is False
    host.call("release", key="other", value=1)
    assert host.outcome(held)[1]["result"]["value"]["result"] == 1


def parts_come_before_the_answer_in_their_order(start: Start) -> None:
    host = start("stream")
    assert host.call("count", parts=3) == ([_part({"n": n}) for n in range(3)], 3)
    events, result = host.call("say")
    assert events == [
        _part({"progress": {"message": "half", "fraction": 0.5}}),
        _part({"log": {"level": "debug", "message": "opened"}}),
        _part({"text": "line\n", "stream": "stdout"}),
        {"type": "odd", "payload": [1]},
    ]
    assert result is None


def nothing_is_said_after_the_answer(start: Start) -> None:
    host = start("stream")
    host.call("leave")
    assert host.call("haunt") == ([], [False])


def ten_thousand_parts_arrive(start: Start) -> None:
    host = start("stream")
    first, second = host.execute("count", parts=10_000), host.execute("count", parts=10_000)
    wanted = [_part({"n": n}) for n in range(10_000)]
    for id in (second, first):
        events, answer = host.outcome(id)
        assert events == wanted
        assert answer["result"]["value"] == {"success": True, "result": 10_000}


def a_reader_that_lags_is_waited_for(start: Start) -> None:
    host = start("stream")
    parts = 12_000
    id = host.execute("count", parts=parts, size=10_240)
    for _ in range(parts):
        assert b'"event"' in (host.line() or b"")
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    assert int(peak) * 1024 < MOST_MEMORY, peak
    assert host.outcome(id)[1]["result"]["value"]["result"] == parts


# --- optional methods -------------------------------------------------------------------------


def optional_methods_are_the_plugins(start: Start) -> None:
    host = start("optional")
    assert host.result("get_config_schema")["value"]["properties"] == {"root": {"type": "string"}}
    methods = host.result("init", config={})["host"]["methods"]
    assert len(methods) == 11
    assert host.result("get_ui_elements")["value"] == [{"kind": "button", "label": "Go"}]
    tags = host.result("get_tags", config={"root": "x"}, models=[{"id": "m1"}])
    assert tags["value"] == ["root", "m1"]
    assert host.result("required_tags")["value"] == ["vision"]
    result = {"success": True, "result": 1}
    told = host.result("format_tool_result", result=result, state={"a": 1})
    assert told == {"value": "The result is 1.", "state": {"a": 1}}
    params = {"tool_name": "one", "arguments": {"path": "a.txt"}, "state": {}}
    assert host.result("format_tool_call_preview", **params)["value"] == "one of a.txt"
    assert host.failure("to_display_format", text="1", result=result)["detail"] == "nothing to display"
    assert host.call("one") == ([], "one")
    assert len(host.result("get_tool_schemas")["value"]) == 4


def a_plugin_without_optional_methods_has_none(start: Start) -> None:
    host = start("echo")
    optional: dict[str, Frame] = {
        "get_config_schema": {},
        "get_ui_elements": {},
        "get_tags": {},
        "required_tags": {},
        "format_tool_result": {"result": {}},
        "format_tool_call_preview": {"tool_name": "echo"},
        "to_display_format": {"text": "", "result": {}},
    }
    for method, params in optional.items():
        assert host.failure(method, **params)["type"] == "MethodNotFound"


# --- asking back ------------------------------------------------------------------------------

ALL = [
    "append_file",
    "delete_file",
    "file_exists",
    "is_cancelled",
    "keep_artifact",
    "list_files",
    "patch_file",
    "read_file",
    "write_file",
]


def _value(value: Any) -> Frame:
    return {"ok": True, "result": {"value": value}}


def _offered(host: Driver, answers: Sequence[str] = ALL) -> None:
    said = host.result("init", config={}, runtime={"answers": [*answers, "something_newer"]})
    assert sorted(said["host"]["asks"]) == sorted(answers)


def a_tool_reads_and_writes_through_the_runtime(start: Start) -> None:
    host = start("reach")
    _offered(host)
    host.replies = lambda asked: _value("text" if asked["method"] == "read_file" else None)
    context = {"session_id": "sess_1", "tool_use_id": "tu", "workspace_path": "/w"}
    arguments = {"source": "a", "target": "b"}
    id = host.ask("execute_tool", tool_name="copy", arguments=arguments, state={}, context=context)
    _, answer = host.outcome(id)
    assert answer["result"]["value"] == {"success": True, "result": ["sess_1", "text"]}
    assert [(asked["method"], asked["params"]) for asked in host.asked] == [
        ("read_file", {"call": id, "path": "a"}),
        ("write_file", {"call": id, "path": "b", "content": "TEXT"}),
    ]


def bytes_go_both_ways(start: Start) -> None:
    host = start("reach")
    _offered(host)
    data = bytes(range(256))
    host.replies = lambda asked: _value(base64.b64encode(data).decode())
    assert host.call("bytes", source="a", target="b") == ([], 256)
    read, wrote = (asked["params"] for asked in host.asked)
    assert read["encoding"] == wrote["encoding"] == "base64"
    assert base64.b64decode(wrote["content"]) == data[::-1]


def every_way_of_asking_back_is_asked(start: Start) -> None:
    host = start("reach")
    _offered(host)
    values = {"file_exists": True, "list_files": ["a"], "keep_artifact": "/p", "is_cancelled": False}
    host.replies = lambda asked: _value(values.get(asked["method"]))
    assert host.call("everything") == ([], [True, ["a"], "/p", False])
    assert sorted(asked["method"] for asked in host.asked) == sorted(set(ALL) - {"read_file", "write_file"})


def no_more_is_asked_at_once_than_is_answered(start: Start) -> None:
    host = start("reach")
    _offered(host)
    id = host.execute("many", times=100)
    first = [host.frame() for _ in range(64)]
    host.send({"v": 1, "id": "other", "method": "required_tags"})
    assert host.frame()["id"] == "other", "a 65th before the first was answered"
    host.replies = lambda asked: _value(True)
    for asked in first:
        host.send({"v": 1, "id": asked["id"], **_value(True)})
    assert host.outcome(id)[1]["result"]["value"]["result"] == 100
    assert len({asked["id"] for asked in [*first, *host.asked]}) == 100


def a_refusal_of_the_runtime_reaches_the_tool(start: Start) -> None:
    host = start("reach")
    _offered(host)
    error = {"type": "PermissionDenied", "detail": "outside", "reason": "workspace_escape"}
    host.replies = lambda asked: {"ok": False, "error": error}
    assert host.call("refused") == ([], ["PermissionDenied", "outside", "workspace_escape"])


def nothing_is_asked_that_was_not_offered(start: Start) -> None:
    host = start("reach")
    _offered(host, ["write_file"])
    assert host.call("refused")[1][0] == "NotOffered"
    plain = start("reach")
    assert plain.result("init", config={})["host"].get("asks", []) == []
    assert plain.call("refused")[1][0] == "NotOffered"
    assert host.asked == plain.asked == []


# --- the end ----------------------------------------------------------------------------------


def the_host_exits_when_stdin_ends(start: Start) -> None:
    host = start("echo")
    host.call("echo")
    host.close()
    assert host.wait() == 0


def calls_under_way_are_told_that_stdin_ended(start: Start) -> None:
    host = start("slow")
    waiting = host.execute("wait")
    assert host.event(waiting) == _part("begun")
    host.close()
    events, answer = host.outcome(waiting)
    assert (events, answer["ok"]) == ([_part("stopped")], False)
    assert host.wait() == 0


def a_call_that_never_ends_keeps_no_host(start: Start) -> None:
    host = start("slow")
    assert host.event(host.execute("ignore")) == _part("begun")
    host.close()
    assert host.wait() == 0


def a_host_whose_runtime_is_killed_is_gone(start: Start) -> None:
    argv = start("slow").argv
    request = json.dumps({"v": 1, "id": "1", "method": "execute_tool", "params": {"tool_name": "ignore"}})
    script = (
        "import json, subprocess, sys\n"
        "host = subprocess.Popen(json.loads(sys.argv[1]), stdin=-1, stdout=-1)\n"
        "host.stdin.write(sys.argv[2].encode() + b'\\n')\n"
        "host.stdin.flush()\n"
        "host.stdout.readline()\n"
        "print(host.pid, flush=True)\n"
        "host.wait()\n"
    )
    runtime = subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(argv), request],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert runtime.stdout is not None
    with runtime.stdout:
        gone = os.pidfd_open(int(runtime.stdout.readline()))
    try:
        runtime.kill()
        assert runtime.wait(WAIT_S) == -signal.SIGKILL
        readable, _, _ = select.select([gone], [], [], WAIT_S)
        assert readable == [gone]
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(gone, signal.SIGKILL)
        os.close(gone)


PROVES: dict[Callable[[Start], None], tuple[str, ...]] = {
    a_noisy_plugin_prints_to_stderr_alone: ("S1-01", "S1-02", "S1-04"),
    what_is_no_request_is_answered_once_and_the_host_goes_on: ("S1-14",),
    another_version_is_a_protocol_error: ("S1-05", "S1-06"),
    an_unknown_method_is_refused_and_the_host_goes_on: ("S1-12", "S1-13"),
    wrong_params_are_a_protocol_error: ("S1-07", "S1-27"),
    an_id_in_flight_is_not_used_twice: ("S1-08",),
    texts_survive_whatever_is_in_them: ("S1-53",),
    four_mebibytes_come_back: ("S1-52",),
    a_line_too_long_is_refused_in_both_directions: ("S1-52",),
    init_gives_a_state_and_says_what_the_host_answers: ("S1-15",),
    the_state_goes_round: ("S1-16", "S1-19", "S1-23"),
    a_failure_fails_its_call_alone: ("S1-08", "S1-09", "S1-24", "S1-26"),
    what_json_does_not_have_is_a_failure: ("S1-26",),
    answers_come_in_any_order: ("S1-10",),
    a_cancelled_call_stops_and_both_are_answered: ("S1-49",),
    parts_come_before_the_answer_in_their_order: ("S1-29", "S1-31"),
    nothing_is_said_after_the_answer: ("S1-33",),
    ten_thousand_parts_arrive: ("S1-34",),
    a_reader_that_lags_is_waited_for: ("S1-34", "S1-52"),
    optional_methods_are_the_plugins: ("S1-21", "S1-36", "S1-37", "S1-39", "S1-43", "S1-44", "S1-45"),
    a_plugin_without_optional_methods_has_none: ("S1-13", "S1-35"),
    a_tool_reads_and_writes_through_the_runtime: (),
    bytes_go_both_ways: (),
    every_way_of_asking_back_is_asked: (),
    no_more_is_asked_at_once_than_is_answered: (),
    a_refusal_of_the_runtime_reaches_the_tool: (),
    nothing_is_asked_that_was_not_offered: (),
    the_host_exits_when_stdin_ends: ("S1-47",),
    calls_under_way_are_told_that_stdin_ended: ("S1-47", "S1-49"),
    a_call_that_never_ends_keeps_no_host: ("S1-47",),
    a_host_whose_runtime_is_killed_is_gone: ("S1-47",),
}
"""Every scenario, with the items that it proves of a host."""

SCENARIOS = list(PROVES)
