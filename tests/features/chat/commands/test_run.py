"""`callgate run`: what goes to stdout, what to stderr, and the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from callgate.core.events import FAILED, Event
from callgate.features.chat.commands.agents import Refusals
from tests.features.chat.commands.chatting import Chatting, call, script
from tests.kernel.cli.running import LIMIT_S, Ran, callgate, start
from tests.models_server import ModelServer, Says

WRITES = {"text": "I write it.", "calls": [call("write_file", path="b.txt", content="x\n")]}
DONE = {"text": "Done.", "usage": {"input": 10, "output": 2}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Where the script lies that the model plays."""
    return tmp_path / "script.toml"


def run(
    ws: Path, path: Path, *replies: dict[str, Any], words: tuple[str, ...] = ("go",), stdin: bytes = b"", **said: Any
) -> Ran:
    return callgate("run", "--model", script(path, *replies, **said), *words, cwd=ws, stdin=stdin)


def test_only_what_the_model_says_goes_to_stdout(ws: Path, model: Path) -> None:
    reads = {"text": "I look.", "calls": [call("read_file", path="a.txt")]}
    ran = run(ws, model, reads, DONE, chunk=3)
    assert (ran.code, ran.out) == (0, "I look.\nDone.\n")
    first, second = ran.err.splitlines()
    assert first == "* read_file  a.txt"
    assert second.startswith("  ok  14 bytes  ")


def test_json_is_one_object_about_the_end(ws: Path, model: Path) -> None:
    ran = run(ws, model, DONE, words=("go", "--output-format", "json"))
    assert ran.code == 0
    assert ran.answer == {
        "session": ran.json["session"],
        "stop": "end_turn",
        "text": "Done.",
        "usage": {"input": 10, "output": 2, "cache_read": 0, "cache_write": 0},
        "cost_usd": None,
        "cycles": 1,
        "calls": 0,
        "notice": None,
        "finished": True,
        "refusals": [],
    }
    assert ran.json["session"].startswith("sess_")


@pytest.mark.parametrize("words", [("--json",), ("--output-format", "stream-json")])
def test_streamed_events_are_those_that_are_kept(words: tuple[str, ...], ws: Path, model: Path) -> None:
    ran = run(ws, model, WRITES, DONE, words=("go", "--allow", "write_file", *words))
    *events, end = map(json.loads, ran.out.splitlines())
    assert (ran.code, end["stop"], end["calls"]) == (0, "end_turn", 1)
    kept = callgate("events", "--session", end["session"], "--json", cwd=ws).out.splitlines()
    assert events == [json.loads(line) for line in kept]
    assert "tool.completed" in [each["type"] for each in events]


@pytest.mark.parametrize(
    ("reply", "words", "code", "stop"),
    [
        ({"text": "Yes."}, (), 0, "end_turn"),
        ({"error": "overloaded"}, (), 1, "error"),
        ({"text": "No.", "stop": "refusal"}, (), 3, "refusal"),
        ({"text": "Lon", "stop": "max_tokens"}, (), 3, "max_tokens"),
        ({"calls": [call("list_dir", path=".")]}, ("--max-turns", "1"), 3, "max_turn_requests"),
        ({"calls": [call("list_dir", path=".")], "usage": {"input": 9}}, ("--max-tokens", "9"), 3, "max_turn_requests"),
        ({"text": "Long.", "delay_s": 60.0}, ("--time-limit", "0.05"), 3, "cancelled"),
    ],
)
@pytest.mark.spec("S3-39")
def test_the_exit_code_says_how_it_ended(
    reply: dict[str, Any], words: tuple[str, ...], code: int, stop: str, ws: Path, model: Path
) -> None:
    ran = run(ws, model, reply, words=("go", *words, "--output-format", "json"))
    assert (ran.code, ran.json["stop"]) == (code, stop)
    assert (ran.json["notice"] is None) == (stop == "end_turn")
    assert ("callgate: " in ran.err) == (stop != "end_turn")


def test_without_an_approver_a_call_is_refused_and_the_model_is_told(ws: Path, model: Path) -> None:
    ran = run(ws, model, WRITES, {"expect": "No approver is available", "text": "A pity."})
    assert (ran.code, ran.out) == (3, "I write it.\nA pity.\n")
    assert "hint: --allow write_file, --mode write, " in ran.err
    assert "callgate: the task may be unfinished: 1 call was refused (write_file)" in ran.err
    assert not (ws / "b.txt").exists()


@pytest.mark.parametrize("format", [("--output-format", "json"), ("--json",)], ids=["json", "stream-json"])
def test_json_lists_refusals_with_their_arguments_and_origins(
    ws: Path, model: Path, home: Path, format: tuple[str, ...]
) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "settings.toml").write_text('[[policy.rules]]\ndecision = "deny"\ncommand = "rm *"\n')
    calls = [*WRITES["calls"], call("read_file", path="../x"), call("shell", command="rm -rf build")]
    ran = run(ws, model, {"calls": calls}, DONE, words=("go", *format))
    end = json.loads(ran.out.splitlines()[-1])
    assert (ran.code, end["stop"], end["finished"]) == (3, "end_turn", False)
    first, second, third = end["refusals"]
    assert [each["tool"] for each in end["refusals"]] == ["write_file", "read_file", "shell"]
    assert first["arguments"] == '{"content":"x\\n","path":"b.txt"}'
    assert (first["reason"], first["origin"]) == ("user_denied", "class_default (built-in default)")
    assert (second["reason"], second["origin"]) == ("workspace_escape", None)
    assert second["message"] == "Path '../x' escapes workspace boundary"
    assert (third["reason"], third["origin"]) == ("policy_deny", f"rule ({home}/settings.toml:1)")
    assert all(each["call_id"].startswith("tu_") for each in end["refusals"])


@pytest.mark.parametrize(
    ("later", "code"),
    [
        (call("read_file", path="a.txt"), 3),
        (call("write_file", path="c.txt", content="x\n"), 3),
        (call("write_file", path="b.txt", content="y\n"), 0),
        (call("write_file", path="b.txt", content="x\n"), 0),
    ],
    ids=["another tool", "another path", "the same path", "the same call"],
)
def test_only_a_later_call_for_the_same_thing_makes_up_for_a_refusal(
    ws: Path, model: Path, later: dict[str, Any], code: int
) -> None:
    """The person denies the first call and allows the next ones."""
    name = script(model, WRITES, {"text": "Again.", "calls": [later]}, DONE)
    asked = Chatting("run", "--model", name, "--output-format", "json", "go", cwd=ws)
    asked.until("session >")
    asked.press("n\r")
    if later["tool"] == "write_file":
        asked.terminal.read_until(lambda text: text.count("session >") == 2)
        asked.press("y\r")
    asked.until('"finished"')
    assert asked.end() == code


def test_a_failed_call_is_no_refusal(ws: Path, model: Path) -> None:
    ran = run(ws, model, {"calls": [call("read_file", path="nosuch")]}, DONE, words=("go", "--output-format", "json"))
    assert (ran.code, ran.json["finished"], ran.json["refusals"]) == (0, True, [])


def test_refusals_are_listed_if_the_audit_log_is_gone(tmp_path: Path) -> None:
    payload = {"call_id": "tu_1", "tool_name": "shell", "error_class": "user_denied", "message": "No."}
    found = Refusals()
    found.hear(Event(id="e", timestamp=0.0, session_id="s", type=FAILED, actor="tool", payload=payload))
    ((refusal,), made_up_for) = found.report(str(tmp_path / "none.jsonl"))
    assert (refusal.tool, refusal.arguments, refusal.origin, made_up_for) == ("shell", "", None, False)


@pytest.mark.parametrize("words", [("--allow", "write-file"), ("--mode", "write")])
def test_what_was_allowed_before_runs(words: tuple[str, ...], ws: Path, model: Path) -> None:
    ran = run(ws, model, WRITES, {"expect": "b.txt", "text": "Done."}, words=("go", *words))
    assert (ran.code, ran.out) == (0, "I write it.\nDone.\n")
    assert (ws / "b.txt").read_text() == "x\n"


def test_one_tool_that_is_allowed_allows_no_other(ws: Path, model: Path) -> None:
    run(ws, model, WRITES, DONE, words=("go", "--allow", "patch_file"))
    assert not (ws / "b.txt").exists()


def test_a_tool_that_is_not_there_cannot_be_allowed(ws: Path, model: Path) -> None:
    ran = run(ws, model, DONE, words=("go", "--allow", "writefile", "--json"))
    assert (ran.code, ran.json["error"]["reason"]) == (2, "usage")


def test_at_a_terminal_the_person_is_asked(ws: Path, model: Path) -> None:
    name = script(model, WRITES, DONE)
    asked = Chatting("run", "--model", name, "go", cwd=ws)
    asked.until("session >")
    asked.press("y\r").until("Done.")
    assert asked.end() == 0
    assert (ws / "b.txt").read_text() == "x\n"


def test_no_input_asks_nobody_even_at_a_terminal(ws: Path, model: Path) -> None:
    name = script(model, WRITES, DONE)
    asked = Chatting("run", "--model", name, "go", "--no-input", cwd=ws)
    asked.until("Done.")
    assert asked.end() == 3
    assert not (ws / "b.txt").exists()


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("sum", "up"), b"", "sum up"),
        (("sum up",), b"a\nb\n", "sum up\n\n<stdin>\na\nb\n</stdin>"),
        (("-",), b"a\nb\n", "a\nb"),
        ((), b"a\nb\n", "a\nb"),
        (("--", "--json"), b"", "--json"),
    ],
)
def test_stdin_joins_the_prompt(words: tuple[str, ...], stdin: bytes, said: str, ws: Path, model: Path) -> None:
    ran = run(ws, model, DONE, words=("--output-format", "json", *words), stdin=stdin)
    shown = callgate("sessions", "show", ran.json["session"], "--json", cwd=ws)
    assert [each["prompt"] for each in shown.json["turns"]] == [said]


def test_without_a_prompt_nothing_is_run(ws: Path, model: Path) -> None:
    ran = run(ws, model, DONE, words=())
    assert (ran.code, ran.out) == (2, "")


def test_without_a_model_it_is_said_how_to_name_one(ws: Path) -> None:
    ran = callgate("run", "go", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (2, "model_request")


def test_a_running_call_cannot_start_a_model(ws: Path, model: Path) -> None:
    words = ("--model", script(model, DONE), "go")
    for command in ("run", "chat"):
        assert callgate(command, *words, cwd=ws, env={"CALLGATE_CALL": "tu_1"}).code == 3


def _begun(process: subprocess.Popen[bytes]) -> None:
    """Wait until the model has been asked."""
    assert process.stdout is not None
    while b"llm.call_started" not in process.stdout.readline():
        pass


@pytest.mark.spec("S3-43")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_turn_and_what_was_said_is_kept(number: signal.Signals, ws: Path, model: Path) -> None:
    endless = {"text": "Word. " * 1000, "chunk": 6, "delay_s": 0.02}
    started = start("run", "--model", script(model, endless), "--json", "go", cwd=ws)
    _begun(started)
    started.send_signal(number)
    out, err = started.communicate(timeout=LIMIT_S)
    end = json.loads(out.splitlines()[-1])
    assert (started.returncode, end["stop"]) == (128 + number, "cancelled")
    assert b"Traceback" not in err
    again = run(ws, model, DONE, words=("--continue", "and now?", "--output-format", "json"))
    assert (again.code, again.json["session"]) == (0, end["session"])


def test_a_second_signal_waits_for_nothing(ws: Path, model: Path, tools: Path) -> None:
    with (tools / "settings.toml").open("a") as file:
        file.write("[limits]\ncancel_grace_s = 60\n")
    name = script(model, {"calls": [call("stuck")]})
    started = start("run", "--model", name, "--json", "go", cwd=ws)
    assert started.stdout is not None
    while b"tool.called" not in started.stdout.readline():
        pass
    started.send_signal(signal.SIGINT)
    assert started.stderr is not None
    while b"stopping" not in started.stderr.readline():
        pass
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=LIMIT_S)
    assert (started.returncode, b'"stop"' in out) == (130, False)


def test_what_cannot_be_stopped_is_not_waited_for(ws: Path, model: Path, tools: Path) -> None:
    with (tools / "settings.toml").open("a") as file:
        file.write("[limits]\ncancel_grace_s = 0.1\nabandon_s = 0.1\n")
    name = script(model, {"calls": [call("stuck")]})
    ran = callgate("run", "--model", name, "go", "--time-limit", "0.3", cwd=ws)
    assert ran.code == 3


def test_a_killed_turn_goes_on(ws: Path, model: Path) -> None:
    slow = {"text": "Slow.", "delay_s": 60.0}
    started = start("run", "--model", script(model, slow), "--json", "go", cwd=ws)
    _begun(started)
    started.kill()
    started.communicate(timeout=LIMIT_S)
    ran = run(ws, model, {"expect": "go", "text": "Done."}, words=("--continue",))
    assert (ran.code, ran.out) == (0, "Done.\n")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_reader_that_has_gone_ends_it_without_a_word(words: tuple[str, ...], ws: Path, model: Path) -> None:
    reply = {"text": "Word.", "calls": [call("list_dir", path=".")]}
    name = script(model, reply, repeat=True, delay_s=0.01)
    started = start("run", "--model", name, "go", "--max-turns", "1000", *words, cwd=ws)
    assert started.stdout is not None
    assert started.stdout.readline()
    started.stdout.close()
    started.stdout = None
    _, err = started.communicate(timeout=LIMIT_S)
    assert started.returncode == 141
    assert b"Broken" not in err


@pytest.mark.spec("T16")
def test_what_a_model_says_cannot_act_on_a_terminal(ws: Path, model: Path) -> None:
    name = script(model, {"text": "\x1b[2Jgone\u009b1A\u202e"}, chunk=1)
    started = Chatting("run", "--model", name, "go", cwd=ws)
    assert started.end() == 0
    assert started.terminal.text == "\\x1b[2Jgone\\x9b1A\\u202e\r\n"


def test_a_pipe_gets_the_text_as_it_is(ws: Path, model: Path) -> None:
    assert run(ws, model, {"text": "\x1b[1mé\x1b[0m"}, chunk=1).out == "\x1b[1mé\x1b[0m\n"


def test_resume_names_a_session(ws: Path, model: Path) -> None:
    first = run(ws, model, DONE, words=("go", "--output-format", "json")).json["session"]
    run(ws, model, DONE)
    words = ("--resume", first[-12:], "more", "--output-format", "json")
    assert run(ws, model, DONE, words=words).json["session"] == first
    assert run(ws, model, DONE, words=("--resume", "nosuchsession", "more")).code == 1


def test_there_is_nothing_to_continue_in_a_new_directory(ws: Path, model: Path) -> None:
    callgate("call", "shell", "command=true", "--yes", cwd=ws)  # a session without a word
    assert run(ws, model, DONE, words=("--continue", "go")).code == 1


def test_two_at_once_do_not_share_a_session(ws: Path, model: Path) -> None:
    slow = {"text": "Slow.", "delay_s": 60.0}
    started = start("run", "--model", script(model, slow), "--json", "go", cwd=ws)
    _begun(started)
    ran = run(ws, model, DONE, words=("--continue", "go", "--json"))
    assert (ran.code, ran.json["error"]["reason"]) == (3, "session_locked")
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=LIMIT_S)


async def test_a_reply_that_was_cut_off_never_reaches_a_pipe(ws: Path, home: Path) -> None:
    async with ModelServer(Says("Half of a reply" * 99, cut=4000), Says("The whole.")) as server:
        (home / "settings.toml").write_text(
            f'model = "m"\n[models.m]\nkind = "openai"\nmodel = "m"\nbase_url = "{server.url}"\n'
        )
        ran = await asyncio.to_thread(callgate, "run", "go", cwd=ws)
    assert (ran.code, ran.out) == (0, "The whole.\n")
    assert "the model is called again" in ran.err
