"""`callgate call`: the result on stdout, everything else on stderr, and an exit code that says it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.cli.errors import EXIT_CODES
from callgate.core.errors import ToolErrorClass
from tests.kernel.cli.running import CALLGATE, Ran, callgate, environment, start, wait_until_gone

PATH = f"{Path(CALLGATE).parent}:{os.environ['PATH']}"
KEYS = [
    "ok",
    "call_id",
    "tool",
    "content",
    "value",
    "error",
    "diagnostics",
    "meta",
    "files_modified",
    "command_executed",
    "partial",
    "truncated",
    "duration_ms",
    "answered_by",
]


def test_every_error_class_has_its_exit_code() -> None:
    assert EXIT_CODES == {
        ToolErrorClass.NOT_FOUND: 1,
        ToolErrorClass.VALIDATION_ERROR: 2,
        ToolErrorClass.PERMISSION_DENIED: 3,
        ToolErrorClass.USER_DENIED: 3,
        ToolErrorClass.CONFIRMATION_TIMEOUT: 3,
        ToolErrorClass.TIMEOUT: 4,
        ToolErrorClass.EXECUTION_ERROR: 1,
        ToolErrorClass.CANCELLED: 130,
        ToolErrorClass.SHUTTING_DOWN: 5,
        ToolErrorClass.PROTOCOL_ERROR: 6,
        ToolErrorClass.HOST_UNAVAILABLE: 5,
        ToolErrorClass.PARSE_ERROR: 2,
    }
    assert set(EXIT_CODES) == set(ToolErrorClass)


@pytest.mark.parametrize(
    ("words", "hinted"),
    [
        (["write_file", "path=b.txt", "content=x"], True),
        (["read_file", "path=../x"], False),
        (["web_fetch", "url=http://127.0.0.1:1/"], False),
    ],
)
def test_which_rule_decided_is_a_hint_where_one_did(words: list[str], hinted: bool, ws: Path) -> None:
    ran = callgate("call", *words, cwd=ws)
    assert (ran.code, "policy explain" in ran.err) == (3, hinted)


@pytest.mark.parametrize(
    ("words", "code", "error_class"),
    [
        (["read_file", "path=a.txt"], 0, None),
        (["read-file", "path=a.txt"], 0, None),
        (["no_such_tool"], 1, "not_found"),
        (["read_file", "path=missing.txt"], 1, "execution_error"),
        (["crash"], 1, "execution_error"),
        (["read_file", "path=a.txt", "limit=x"], 2, "validation_error"),
        (["read_file", "path"], 2, "validation_error"),
        (["read_file", "--args", "{"], 2, "parse_error"),
        (["read_file", "path=a.txt", "--args", '{"path": "b"}'], 2, "validation_error"),
        (["read_file", "path=../x"], 3, "permission_denied"),
        (["write_file", "path=b.txt", "content=x"], 3, "permission_denied"),
        (["read_file", "path=a.txt", "--mode", "none"], 3, "permission_denied"),
        (["delete_file", "path=a.txt", "--mode", "read", "--yes"], 3, "permission_denied"),
        (["shell", "command=sleep 60", "--yes", "--timeout", "0.2"], 4, "timeout"),
        (["fail", "kind=ToolShuttingDown"], 5, "shutting_down"),
        (["fail", "kind=ToolHostUnavailable"], 5, "host_unavailable"),
        (["fail", "kind=ToolProtocolError"], 6, "protocol_error"),
        (["fail", "kind=ConfirmationTimeout"], 3, "confirmation_timeout"),
        (["fail", "kind=ToolCancelled"], 130, "cancelled"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
@pytest.mark.usefixtures("tools")
def test_the_exit_code_and_the_envelope_name_the_same_end(
    words: list[str], code: int, error_class: str | None, ws: Path
) -> None:
    ran = callgate("call", *words, "--json", cwd=ws)
    assert ran.code == code
    assert list(ran.json) == KEYS
    assert ran.json["ok"] is (error_class is None)
    assert ran.out.count("\n") == 1
    if error_class is None:
        assert ran.json["error"] is None
        assert ran.err == ""
    else:
        assert ran.json["error"]["class"] == error_class
        assert {"class", "message", "reason", "details"} <= ran.json["error"].keys()
        assert f"error ({error_class}): " in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["call", "--json"],
        ["call", "read_file", "--json", "--mode", "everything"],
        ["call", "read_file", "--json", "--timeout", "-1"],
        ["call", "read_file", "--json", "--timeout", "nan"],
        ["call", "read_file", "--json", "--unknown"],
        ["call", "read_file", "--json", "--workspace", "missing"],
        ["call", "read_file", "--jso", "--json"],
        ["nonsense", "--json"],
        ["audit", "--json"],
        ["--nonsense", "--json"],
    ],
    ids=" ".join,
)
def test_wrong_use_exits_with_2_and_has_an_envelope_too(words: list[str], ws: Path) -> None:
    ran = callgate(*words, cwd=ws)
    assert (ran.code, ran.json["ok"]) == (2, False)
    assert (ran.json["error"]["class"], ran.json["error"]["reason"]) == ("validation_error", "usage")
    assert ran.err.startswith("error (validation_error): ")


def test_a_result_is_text_on_stdout_and_nothing_on_stderr(ws: Path) -> None:
    ran = callgate("call", "read_file", "path=a.txt", "limit=2", cwd=ws)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("one\ntwo\n")


@pytest.mark.usefixtures("tools")
def test_values_arrive_as_the_schema_says(ws: Path) -> None:
    ran = callgate(
        "call",
        "show",
        "text=20",
        "count=20",
        "size=2",
        "deep=true",
        "tags=a",
        "tags=b",
        "numbers=[1,2]",
        'at={"x":1}',
        "kind=b",
        "--json",
        cwd=ws,
    )
    assert ran.json["value"] == {
        "text": "20",
        "count": 20,
        "size": 2.0,
        "deep": True,
        "tags": ["a", "b"],
        "numbers": [1, 2],
        "at": {"x": 1},
        "kind": "b",
    }


@pytest.mark.usefixtures("tools")
def test_arguments_come_from_stdin_and_from_words_together(ws: Path) -> None:
    ran = callgate("call", "show", "count=1", "--args", "-", "--json", cwd=ws, stdin='{"text": "ä"}'.encode())
    assert (ran.json["value"]["text"], ran.json["value"]["count"]) == ("ä", 1)


def test_every_wrong_field_is_named_at_once(ws: Path) -> None:
    ran = callgate("call", "read_file", "limit=x", "ofset=1", "--json", cwd=ws)
    assert {each["path"] for each in ran.json["error"]["details"]["errors"]} >= {"limit", "ofset"}


@pytest.mark.spec("T24")
@pytest.mark.parametrize("word", ["--yes", "--mode=write", "--"])
def test_a_word_behind_the_dashes_is_never_an_option(word: str, ws: Path) -> None:
    refused = callgate("call", "write_file", "path=b", "content=x", "--json", "--", word, cwd=ws)
    assert (refused.code, refused.json["error"]["class"]) == (2, "validation_error")
    assert not (ws / "b").exists()


@pytest.mark.spec("T24")
@pytest.mark.usefixtures("tools")
def test_a_value_that_looks_like_an_option_is_a_value(ws: Path) -> None:
    ran = callgate("call", "show", "--json", "text=--yes", "--", "tags=--mode=write", cwd=ws)
    assert (ran.json["value"]["text"], ran.json["value"]["tags"]) == ("--yes", ["--mode=write"])


@pytest.mark.spec("T24")
def test_a_tool_name_behind_the_dashes_is_never_an_option(ws: Path) -> None:
    ran = callgate("call", "--json", "--", "--yes", "path=a.txt", cwd=ws)
    assert (ran.code, ran.json["tool"], ran.json["error"]["class"]) == (1, "--yes", "not_found")


@pytest.mark.spec("T24")
def test_an_option_is_never_guessed_from_its_beginning(ws: Path) -> None:
    ran = callgate("call", "shell", "command=touch x", "--ye", cwd=ws)
    assert (ran.code, (ws / "x").exists()) == (2, False)


def test_a_write_without_anybody_to_ask_is_refused_and_says_how_to_allow_it(ws: Path) -> None:
    ran = callgate("call", "write_file", "path=b.txt", "content=x", cwd=ws)
    assert (ran.code, ran.out) == (3, "")
    assert "--yes" in ran.err
    assert "settings.toml" in ran.err
    assert not (ws / "b.txt").exists()


def test_yes_allows_it_once_and_says_what(ws: Path) -> None:
    ran = callgate("call", "write_file", "path=b.txt", "content=x", "--yes", "--json", cwd=ws)
    assert (ran.code, ran.json["files_modified"]) == (0, ["b.txt"])
    assert ran.err.startswith("--yes allows write_file: ")
    assert (ws / "b.txt").read_text() == "x"
    assert callgate("call", "write_file", "path=c.txt", "content=x", cwd=ws).code == 3


def test_yes_does_not_overrule_a_deny(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('[policy.per_tool]\nwrite_file = "deny"\n')
    ran = callgate("call", "write_file", "path=b.txt", "content=x", "--yes", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (3, "policy_deny")
    assert not (ws / "b.txt").exists()


def test_a_failing_command_shows_its_output_and_exits_with_1(ws: Path) -> None:
    ran = callgate("call", "shell", "command=echo out; echo err >&2; exit 7", "--yes", cwd=ws)
    assert ran.code == 1
    assert ran.out == "out\n[stderr]\nerr\n[exit code 7]\n"
    assert "error (execution_error)" in ran.err


def test_live_output_goes_to_stderr_only_if_asked_for(ws: Path) -> None:
    words = ["call", "shell", "command=echo seen", "--yes"]
    assert "seen\n" not in callgate(*words, cwd=ws).err.replace("echo seen\n", "")
    verbose = callgate(*words, "-v", cwd=ws)
    assert verbose.out == "seen\n"
    assert "seen\n" in verbose.err.replace("echo seen\n", "")
    assert "embedded runtime" in verbose.err


@pytest.mark.usefixtures("tools")
def test_a_result_without_content_is_ok_unless_quiet(ws: Path) -> None:
    assert callgate("call", "nothing", cwd=ws) == Ran(0, "ok\n", "")
    assert callgate("call", "nothing", "-q", cwd=ws) == Ran(0, "", "")


@pytest.mark.usefixtures("tools")
def test_an_image_is_named_as_text_and_whole_as_json(ws: Path) -> None:
    plain = callgate("call", "image", cwd=ws)
    assert plain.out == "[image/png, 4 bytes]\n"
    assert "--json" in plain.err
    whole = callgate("call", "image", "--json", cwd=ws).json["content"]
    assert whole == [{"type": "image", "source": {"kind": "base64", "data": "iVBORw=="}, "media_type": "image/png"}]


@pytest.mark.usefixtures("tools")
def test_text_reaches_a_pipe_as_it_is(ws: Path) -> None:
    assert callgate("call", "escape", cwd=ws).out == "\x1b[2Jgone\x9b1A\n"


@pytest.mark.usefixtures("tools")
def test_an_exception_of_a_tool_is_hidden_but_can_be_found(ws: Path) -> None:
    ran = callgate("call", "crash", cwd=ws)
    assert ran.code == 1
    assert "secret-9c1f" not in ran.out + ran.err
    assert "Traceback" not in ran.err
    for level in ("debug", "error"):
        assert "Traceback" in callgate("call", "crash", cwd=ws, env={"CALLGATE_LOG": level}).err
    assert "Traceback" in callgate("call", "crash", "--debug", cwd=ws).err


def test_an_unknown_log_level_is_wrong_use(ws: Path) -> None:
    ran = callgate("call", "list_dir", cwd=ws, env={"CALLGATE_LOG": "loud"})
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_call_and_its_whole_process_tree(number: signal.Signals, ws: Path) -> None:
    mark = f"600.{os.getpid()}{number:d}"
    command = f"command=sleep {mark} & echo 1; exec sleep {mark}"
    process = start("call", "shell", command, "--yes", "-v", "--json", cwd=ws)
    assert process.stderr is not None
    _wait_for_output(iter(process.stderr.readline, b""))
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert json.loads(out)["error"]["class"] == "cancelled"
    wait_until_gone(mark)


def _wait_for_output(lines: Iterator[bytes]) -> None:
    for line in lines:
        if line[:1].isdigit():
            return
    raise AssertionError("the command did not start")


def test_a_thread_that_cannot_be_stopped_does_not_keep_the_command(ws: Path, tools: Path) -> None:
    with (tools / "settings.toml").open("a") as settings:
        settings.write("[limits]\nabandon_s = 0.2\ncancel_grace_s = 0.1\n")
    ran = callgate("call", "stuck", "--timeout", "0.2", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["details"]) == (4, {"stopped": False})


def test_a_reader_that_goes_away_is_no_error(ws: Path) -> None:
    for words in (["tools"], ["call", "list_dir"], ["--help"], ["tools", "--json"]):
        process = start(*words, cwd=ws)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (141, b"")


def test_a_command_that_a_tool_started_cannot_approve_itself(ws: Path, home: Path) -> None:
    # Also where no sandbox keeps it from finding us.
    (home / "settings.toml").write_text('sandbox = "off"\n')
    inner = "command=callgate call write_file path=b.txt content=x --yes; callgate trust ."
    cleared = inner.replace("=callgate", "=env -i PATH=$PATH HOME=$HOME callgate", 1)
    for command in (inner, cleared):
        ran = callgate("call", "shell", command, "--yes", cwd=ws, env={"PATH": PATH})
        assert ran.code == 1
        assert ran.out.count("error (permission_denied)") == 2
        assert not (ws / "b.txt").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("callgate call list_dir >&-", 0),
        ("callgate call list_dir <&- 2>&-", 0),
        ("callgate call list_dir --args - <&-", 2),
        ("callgate call list_dir >/dev/full", 1),
        ("mkdir gone && cd gone && rmdir ../gone && callgate call list_dir", 1),
        (r"callgate call read_file path=$'\xff'", 2),
        ("callgate call read_file path=missing | cat", 0),
    ],
)
def test_whatever_the_shell_does_to_us_there_is_an_exit_code_and_no_traceback(
    command: str, code: int, ws: Path
) -> None:
    ran = subprocess.run(
        ["bash", "--norc", "-c", command],
        cwd=ws,
        capture_output=True,
        env=environment({"PATH": PATH}),
        start_new_session=True,
    )
    assert (ran.returncode, b"Traceback" in ran.stderr, b"ignored" in ran.stderr) == (
        code,
        False,
        False,
    )
    assert b"internal error" not in ran.stderr
