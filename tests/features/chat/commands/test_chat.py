"""`callgate chat` at a real terminal, with a model that plays a script."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.features.chat.commands.chatting import Chatting, call, script
from tests.kernel.cli.running import LIMIT_S, callgate, start

WRITES = {"text": "I write it.", "calls": [call("write_file", path="b.txt", content="x\n")]}
DONE = {"text": "All done."}
ENDLESS = {"text": "Word. " * 20_000, "chunk": 6, "delay_s": 0.05}
"""A reply of 1,000 seconds: a busy machine cannot reach its end before Ctrl-C is pressed."""

Start = Callable[..., Chatting]


@pytest.fixture
def chat(ws: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a chat with a model that gives these replies."""
    started: list[Chatting] = []

    def begin(*replies: dict[str, Any], words: tuple[str, ...] = (), **said: Any) -> Chatting:
        name = script(tmp_path / "script.toml", *replies)
        started.append(Chatting("chat", "--model", name, *words, cwd=ws, **said))
        return started[-1]

    yield begin
    for each in started:
        if each.code is None:
            each.kill()


def test_a_conversation_with_a_call_that_is_allowed(chat: Start, ws: Path) -> None:
    talk = chat(WRITES, DONE, words=("--workspace", str(ws)))
    talk.say("please write").until("session >")
    assert "  | +x" in talk.screen
    talk.press("y\r")
    screen = re.sub(r"\d+ ms", "N ms", talk.until("All done."))
    shown = ["● write_file  b.txt content=x\\n", "  ok  changed b.txt  N ms", "All done."]
    assert "\n".join(shown) in screen
    talk.prompted()
    assert (ws / "b.txt").read_text() == "x\n"
    assert talk.press("\x04").end() == 0
    assert "To continue: callgate chat --resume " in talk.screen


def test_a_sub_agent_shows_its_steps_and_its_questions_but_not_its_words(chat: Start, ws: Path) -> None:
    writes = {**WRITES, "text": "Within."}
    spawn = {"calls": [call("spawn_agent", task="write it", title="Write")]}
    talk = chat(spawn, writes, {"text": "Reported.", "delay_s": 0.3}, DONE, rows=60)
    talk.say("please write").until("session >")
    assert "the answer counts for this call alone" in talk.screen
    talk.press("y\r").until("step 2: calls the model")
    talk.until("All done.")
    assert "● spawn_agent  task=write it title=Write" in talk.screen
    assert "Within." not in talk.screen and "Reported." not in talk.screen
    assert (ws / "b.txt").read_text() == "x\n"


def test_a_plan_is_shown_as_a_list(chat: Start) -> None:
    entries = [
        {"content": "look", "status": "completed"},
        {"content": "write", "status": "in_progress", "priority": "high"},
        {"content": "check\u001b[2J", "status": "pending"},
    ]
    talk = chat({"calls": [call("update_plan", entries=entries)]}, DONE)
    talk.say("go").until("All done.")
    shown = ["● update_plan", "  [x] look", "  [>] write", "  [ ] check\\x1b[2J"]
    assert "\n".join(shown) in talk.screen


def test_a_call_that_is_denied_never_starts(chat: Start, ws: Path) -> None:
    talk = chat(WRITES, DONE)
    talk.say("please write").until("session >")
    talk.press("n\r").until("All done.")
    assert "  refused  write_file  user_denied" in talk.screen
    assert not (ws / "b.txt").exists()


@pytest.mark.spec("S3-42", "S3-43")
def test_text_streams_and_ctrl_c_stops_the_turn(chat: Start) -> None:
    talk = chat(ENDLESS, DONE)
    talk.say("go").until("Word. Word.")
    talk.press("\x03").until("Stopped.")
    talk.say("and now?").until("All done.")
    talk.prompted()
    assert talk.press("\x03").end() == 0


def test_ctrl_c_at_a_question_stops_the_turn_and_gives_the_line_back(chat: Start, ws: Path) -> None:
    talk = chat(WRITES, {"expect": "my own words", "text": "I see."})
    talk.say("please write").until("session >")
    talk.press("ye").until("> ye")
    talk.press("\x03").until("Stopped.")
    talk.say("my own words").until("I see.")
    assert "elsewhere" not in talk.screen
    assert not (ws / "b.txt").exists()


def test_a_second_ctrl_c_leaves_at_once(chat: Start, tools: Path) -> None:
    with (tools / "settings.toml").open("a") as file:
        file.write("[limits]\ncancel_grace_s = 60\n")
    talk = chat({"calls": [call("stuck")]})
    talk.say("go").until("● stuck")
    talk.press("\x03").until("leave immediately")
    assert talk.press("\x03").end() == 130


def test_ctrl_c_is_heard_whichever_thread_the_system_hands_it_to(chat: Start) -> None:
    talk = chat(ENDLESS)
    talk.say("go").until("Word. Word.")
    beside = max(int(each.name) for each in Path(f"/proc/{talk.pid}/task").iterdir())
    assert beside != talk.pid
    os.kill(beside, signal.SIGINT)  # Linux gives it to this thread first
    talk.until("Stopped.")


def test_ctrl_c_empties_the_line_and_leaves_only_where_it_is_empty(chat: Start) -> None:
    talk = chat(DONE)
    talk.prompted()
    talk.press("half a tho").until("> half a tho")
    talk.press("\x03").prompted()
    assert talk.press("\x03").end() == 0
    assert "To go on" not in talk.screen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_chat_and_keeps_what_was_said(number: signal.Signals, chat: Start, ws: Path) -> None:
    talk = chat(ENDLESS)
    talk.say("go").until("Word. Word.")
    os.kill(talk.pid, number)
    assert talk.end() == 128 + number
    (session,) = json.loads(callgate("sessions", "list", "--json", cwd=ws).out)["sessions"]
    assert (session["title"], session["turn_id"]) == ("go", None)


def until_stored(prompt: str, ws: Path) -> None:
    """A model may answer before the prompt is on the disk."""
    deadline = time.monotonic() + LIMIT_S
    while prompt not in callgate("sessions", "list", "--json", cwd=ws).out:
        assert time.monotonic() < deadline, "the prompt was not stored"


def test_a_killed_turn_goes_on_with_continue(chat: Start, ws: Path) -> None:
    talk = chat(ENDLESS)
    talk.say("count the words").until("Word. Word.")
    until_stored("count the words", ws)
    talk.kill()
    again = chat({"expect": "count the", "text": "One, two."}, DONE, words=("--continue",))
    screen = again.until("One, two.")
    assert "The interrupted turn continues." in screen
    again.say("thanks").until("All done.")


def test_a_question_that_was_open_is_asked_again_after_a_kill(chat: Start, ws: Path) -> None:
    talk = chat(WRITES)
    talk.say("please write").until("session >")
    talk.kill()
    again = chat({"expect": "b.txt", "text": "It is there."}, words=("--continue",))
    again.until("session >")
    again.press("y\r").until("It is there.")
    assert (ws / "b.txt").read_text() == "x\n"


def test_what_a_command_prints_is_shown_to_its_last_lines(chat: Start) -> None:
    prints = call("shell", command="seq 100 104; sleep 0.2; seq 105 108")
    talk = chat({"calls": [prints]}, DONE, words=("--allow", "shell"))
    screen = talk.say("count").until("All done.")
    shown = [row for row in screen.split("\n") if row.startswith(("  |", "  ~"))]
    assert shown == ["  ~ 4 lines before", *(f"  | {n}" for n in range(104, 109))]


def test_a_mode_that_was_chosen_counts_from_the_next_call_on(chat: Start, ws: Path) -> None:
    talk = chat(WRITES, DONE)
    talk.say("/mode write").until("Mode write.")
    talk.say("please write").until("All done.")
    assert (ws / "b.txt").read_text() == "x\n"


def test_an_answer_elsewhere_gives_the_line_back(chat: Start, ws: Path) -> None:
    talk = chat(WRITES, {"text": "First."}, {"expect": "my own words", "text": "Second."})
    talk.say("please write").until("session >")
    (question,) = callgate("confirmations", "--json", cwd=ws).json["confirmations"]
    assert callgate("confirmations", "allow", question["id"], cwd=ws).code == 0
    screen = talk.until("First.")
    assert "the question was withdrawn" in screen
    assert "answered elsewhere: allow" in screen
    talk.say("my own words").until("Second.")


@pytest.mark.spec("T16")
def test_neither_model_nor_tool_can_act_on_the_terminal(chat: Start) -> None:
    hostile = "\x1b[2J\x1b]0;title\x07gone\u009b1A\u202e\r\x08"
    prints = call("shell", command="printf 'a\\033[2Jb\\n'")
    talk = chat(
        {"text": f"before {hostile} after", "chunk": 1, "calls": [prints]},
        DONE,
        words=("--allow", "shell"),
    )
    screen = talk.say("go").until("All done.")
    assert "before \\x1b[2J\\x1b]0;title\\x07gone\\x9b1A\\u202e\\r\\x08 after" in screen
    assert "  | a\\x1b[2Jb" in screen
    assert b"\x1b[2J" not in talk.terminal.written


@pytest.mark.parametrize(("words", "env"), [(("--plain",), {}), ((), {"TERM": "dumb", "NO_COLOR": "1"})])
def test_a_plain_terminal_gets_nothing_but_text(words: tuple[str, ...], env: dict[str, str], chat: Start) -> None:
    prints = call("shell", command="seq 3")
    talk = chat(
        {"thinking": "hm", "text": "Look.", "calls": [prints]}, DONE, words=(*words, "--allow", "shell"), env=env
    )
    talk.say("go").until("All done.")
    assert "  | 3" in talk.screen
    assert b"\x1b" not in talk.terminal.written


def test_a_narrow_terminal_breaks_between_words(chat: Start) -> None:
    text = "Some words that are longer than one line of forty columns"
    talk = chat({"text": text, "calls": [call("write_file", path="b.txt", content="x\n")]}, DONE, columns=40, rows=60)
    screen = talk.say("go").until("[y]es once")
    assert "Some words that are longer than one\nline of forty columns" in screen
    talk.until("session >")
    talk.press("y\r").until("All done.")


def test_thinking_is_hidden_until_it_is_asked_for(chat: Start) -> None:
    thinks = {"thinking": "Let me see.", "text": "Yes."}
    talk = chat(thinks, thinks)
    assert "Let me see." not in talk.say("go").until("Yes.")
    talk.say("/thinking").until("is shown")
    assert "Let me see.\nYes." in talk.say("again").until("see.\nYes.")


def test_history_outlives_the_chat_and_is_private(chat: Start, home: Path) -> None:
    first = chat(DONE)
    first.say("remember me").until("All done.")
    first.say(" but not this").until("more replies")
    first.prompted()
    first.press("\x04").end()
    second = chat(DONE)
    second.prompted()
    second.press("\x1b[A").until("> remember me")
    second.press("\r").until("All done.")
    history = home / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert [json.loads(line) for line in history.read_text().splitlines()] == ["remember me"] * 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("one\\\rtwo\r", "one\ntwo"),
        ("```\r/one\r\rtwo\r```\r", "```\n/one\n\ntwo\n```"),
        ("\x1b[200~one\rtwo\x1b[201~\r", "one\ntwo"),
    ],
    ids=["backslash", "block", "paste"],
)
def test_several_lines_are_one_message(keys: str, said: str, chat: Start) -> None:
    talk = chat({"expect": said, "text": "I see both."})
    talk.prompted()
    talk.press(keys).until("I see both.")


def test_undo_puts_back_what_the_last_turn_changed(chat: Start, ws: Path) -> None:
    patches = call("patch_file", path="a.txt", old="two", new="2")
    talk = chat(
        {"calls": [patches, *WRITES["calls"]]},
        DONE,
        {"expect": "undone", "text": "Oh."},
        words=("--mode", "write"),
        rows=60,
    )
    talk.say("change it").until("All done.")
    assert "2" in (ws / "a.txt").read_text()
    talk.say("/undo").until("session >")
    talk.press("\x03").until("cancelled")
    talk.say("/undo").until(lambda screen: screen.endswith("session >"))
    talk.press("y\r").until("Restored 'a.txt'")
    talk.say("and now?").until("Oh.")
    assert ((ws / "a.txt").read_text(), (ws / "b.txt").exists()) == ("one\ntwo\nthree\n", False)
    talk.prompted()
    assert talk.press("\x03").end() == 0


def test_bare_callgate_opens_a_chat_where_a_model_is_configured(ws: Path, home: Path, tmp_path: Path) -> None:
    first = Chatting(cwd=ws, rows=140)
    first.until("or Enter for the help:")
    first.press("y\r")
    first.until("Allow them? [y/N]")
    first.press("\r")
    assert first.end() == 0
    assert f"wrote {home}/settings.toml" in first.screen
    bare = Chatting(cwd=ws, rows=140)
    assert bare.end() == 0
    assert "usage: callgate" in bare.screen
    name = script(tmp_path / "script.toml", DONE)
    (home / "settings.toml").write_text(f"model = {json.dumps(name)}\n")
    talk = Chatting(cwd=ws)
    talk.say("go").until("All done.")
    talk.prompted()
    assert talk.press("\x04").end() == 0


# Without a terminal: lines come in, lines go out.


def piped(ws: Path, path: Path, lines: str, *replies: dict[str, Any], words: tuple[str, ...] = ()) -> list[str]:
    ran = callgate("chat", "--model", script(path, *replies), *words, cwd=ws, stdin=lines.encode())
    assert (ran.code, ran.err if ran.code else "") == (0, "")
    return ran.out.splitlines()[3:]


def test_a_pipe_brings_a_message_a_line(ws: Path, tmp_path: Path) -> None:
    said = {"one": "First.", "two\nthree": "Second.", "/etc": "Third."}
    replies = [{"expect": expected, "text": text} for expected, text in said.items()]
    out = piped(ws, tmp_path / "s.toml", "one\n\ntwo\\\nthree\n /etc\n", *replies)
    assert out == ["First.", "Second.", "Third."]


def test_a_prompt_of_the_command_line_comes_first(ws: Path, tmp_path: Path) -> None:
    replies = ({"expect": "zero", "text": "First."}, {"expect": "one", "text": "Second."})
    assert piped(ws, tmp_path / "s.toml", "one\n", *replies, words=("zero",)) == ["First.", "Second."]


def test_a_reader_that_has_gone_ends_the_chat_without_a_word(ws: Path, tmp_path: Path) -> None:
    name = script(tmp_path / "s.toml", ENDLESS)
    started = start("chat", "--model", name, "go", cwd=ws)
    assert started.stdout is not None
    assert started.stdout.readline()
    started.stdout.close()
    started.stdout = None
    _, err = started.communicate(timeout=LIMIT_S)
    assert (started.returncode, b"rror" in err) == (141, False)


def test_where_nobody_can_be_asked_a_piped_chat_refuses(ws: Path, tmp_path: Path) -> None:
    out = piped(ws, tmp_path / "s.toml", "go\n", WRITES, {"expect": "No approver is", "text": "Oh."})
    assert out[-1] == "Oh."
    assert not (ws / "b.txt").exists()


def test_each_command_says_what_it_did(ws: Path, tmp_path: Path) -> None:
    first = {"text": "First.", "usage": {"input": 7, "output": 2}}
    steps = {
        "go": ["First."],
        "/cost": ["7 tokens in, 2 out, since the start."],
        "/hepl": ["there is no /hepl; /help?"],
        "/xyzzy": ["there is no /xyzzy; see /help"],
        "/mode": ["Mode ask."],
        "/mode wild": ["'wild' is not a mode: none, read, ask, guarded, write"],
        "/mode READ": ["'READ' is not a mode: none, read, ask, guarded, write"],
        "/mode read": ["Mode read."],
        "/retry": ["Again."],
        "/undo": ["no turn of this conversation has changed files"],
        "/resume": ["an id is missing; /sessions lists the sessions"],
        "/resume nosuchone": ["there is no session 'nosuchone'"],
        "/model nosuchone": ["There is no model 'nosuchone' in the settings (none)"],
        "/clear": [],
        "/compact": ["Summarizing ...", "A summary replaces 3 messages."],
        "/new": ["A new conversation."],
        "/compact ": ["Summarizing ...", "The conversation is too short to summarize."],
        "/retry ": ["there is no earlier prompt"],
        "/quit": [],
        "not read": [],
    }
    again = {"expect": "go", "text": "Again."}
    out = piped(ws, tmp_path / "s.toml", "\n".join(steps), first, again, {"text": "A summary."})
    assert out == [line for shown in steps.values() for line in shown]


def test_tools_and_sessions_are_listed(ws: Path, tmp_path: Path) -> None:
    out = piped(ws, tmp_path / "s.toml", "my title\n/tools\n/sessions\n/help\n", DONE)
    assert any(line.startswith("read_file ") for line in out)
    assert any(line.startswith("sess_") and line.endswith("  my title") for line in out)
    assert any(line.startswith("/undo ") for line in out)


def test_another_conversation_can_be_resumed_and_the_first_is_free_again(ws: Path, tmp_path: Path) -> None:
    name = script(tmp_path / "s.toml", DONE)
    first = callgate("run", "--model", name, "the first", "--output-format", "json", cwd=ws).json["session"]
    lines = f"the second\n/resume {first}\nmore\n/resume {first}\n/new\n/resume {first}\n"
    replies = (DONE, {"text": "More."})
    out = piped(ws, tmp_path / "s.toml", lines, *replies)
    resumed = f"Session {first}, the first."
    assert out == [
        "All done.",
        resumed,
        "All done.",
        "More.",
        "this session is already open",
        "A new conversation.",
        resumed,
        "More.",
    ]


def test_the_model_can_be_changed_within_a_conversation(ws: Path, tmp_path: Path) -> None:
    other = script(tmp_path / "other.toml", {"expect": "two", "text": "Other."})
    out = piped(ws, tmp_path / "s.toml", f"one\n/model {other}\ntwo\n", DONE)
    assert out == ["All done.", f"Model {other}.", "Other."]
