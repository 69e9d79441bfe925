"""A question that waits is told of once, to whoever the settings name, with no power to answer it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import callgate
from callgate import tool
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.core.commands import Launcher
from callgate.dispatch.permission.confirmations import Answer
from callgate.features.reporting import notices
from callgate.features.reporting.notices import (
    KIND,
    Notice,
    Notices,
    WaitingQuestion,
    as_json,
    deliver,
    email,
    slack,
    teams,
)
from callgate.features.reporting.settings import NoticeTarget, NotifyTable
from callgate.storage.sqlite.store import SqliteStore
from tests.http_receiver import Receiver, receiving
from tests.kernel.cli.running import callgate as run

SECRET = "hunter2-correct-horse"
LIMIT_S = 30.0


@tool(side_effects="write")
async def change(text: str) -> str:
    """Change something."""
    return text


def no_launcher() -> Launcher:
    raise AssertionError("no command is named")


@pytest.fixture
def base() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    (base / "ws").mkdir()
    (base / "h").mkdir(mode=0o700)
    yield base
    shutil.rmtree(base, ignore_errors=True)


def settings(base: Path, text: str) -> None:
    (base / "h" / "settings.toml").write_text(text)


def to_webhook(receiver: Receiver, more: str = "", after: float = 0) -> str:
    return (
        f"[notify]\nafter_seconds = {after}\n{more}\n"
        f'[notify.targets.hook]\nkind = "webhook"\nurl = "{receiver.url}/hook"\n'
    )


def a_notice(**more: Any) -> Notice:
    fields = {
        "question": "conf_1",
        "tool": "shell",
        "effect": "execute",
        "session": "sess_1",
        "waited_s": 61,
        "expires_in_s": 240,
        "link": "http://127.0.0.1:1/#/inbox",
    }
    return Notice(**(fields | more))


async def test_a_waiting_question_is_told_of_once_and_its_answer_still_counts(base: Path) -> None:
    with receiving() as receiver:
        settings(base, to_webhook(receiver))
        serving = callgate.serve([base / "ws"], home=base / "h", tools=[change], http="127.0.0.1:0")
        async with serving as instance, callgate.connect(home=base / "h", cwd=base / "ws") as gate:
            with instance.runtime.permission.attach(None):
                call = asyncio.ensure_future(gate.call("change", {"text": f"password={SECRET}"}))
                await asyncio.to_thread(receiver.wait, len)
                (question,) = await instance.runtime.permission.open_confirmations()
                store = await instance.runtime.sessions.store()
                async with asyncio.timeout(LIMIT_S):
                    while b"true" not in b"".join([e.value.encode() for e in await store.entries(KIND)]):
                        await asyncio.sleep(0.01)
                await instance.runtime.permission.answer(question.id, Answer.read(True))
                assert (await call).ok
            assert len(receiver.requests) == 1
            body = json.loads(receiver.requests[0].body)
            assert (body["tool"], body["question"]) == ("change", question.id)
            assert body["link"].endswith("/#/inbox")
            everything = receiver.requests[0].body.decode() + str(receiver.requests[0].headers)
            assert SECRET not in everything
            assert str(instance.token) not in everything
            assert "arguments" not in body
            assert "summary" not in body


async def test_a_target_that_is_away_holds_nothing_up(base: Path) -> None:
    settings(
        base,
        '[notify]\nafter_seconds = 0\n[notify.targets.hook]\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\n',
    )
    async with callgate.serve([base / "ws"], home=base / "h", tools=[change]) as instance:
        async with callgate.connect(home=base / "h", cwd=base / "ws") as gate:
            with instance.runtime.permission.attach(None):
                call = asyncio.ensure_future(gate.call("change", {"text": "x"}))
                store = await instance.runtime.sessions.store()
                async with asyncio.timeout(LIMIT_S):
                    while not await store.entries(KIND):  # it is being sent
                        await asyncio.sleep(0.01)
                (question,) = await instance.runtime.permission.open_confirmations()
                await instance.runtime.permission.answer(question.id, Answer.read(True))
                assert (await call).ok


def question(**more: Any) -> WaitingQuestion:
    now = time.time()
    fields = {
        "id": "conf_1",
        "tool": "shell",
        "effect": "execute",
        "session": "sess_1",
        "workspace": "/w",
        "summary": "make",
        "asked_at": now - 100,
        "expires_at": now + 100,
    }
    return WaitingQuestion(**(fields | more))


async def looked(store: SqliteStore, table: NotifyTable, *questions: WaitingQuestion) -> Notices:
    looking = Notices(no_launcher, lambda: "http://here")
    await looking.look(store, questions, table)
    return looking


async def settled(*looking: Notices) -> None:
    for each in looking:
        await each._tasks.wait(LIMIT_S)


async def test_of_several_processes_one_sends(tmp_path: Path) -> None:
    with receiving() as receiver:
        table = NotifyTable(targets={"a": NoticeTarget(kind="webhook", url=receiver.url)})
        stores = [await SqliteStore.open(str(tmp_path / "s.db")) for _ in range(3)]
        looking = await asyncio.gather(*(looked(each, table, question()) for each in stores))
        await settled(*looking)
        await settled(*await asyncio.gather(*(looked(each, table, question()) for each in stores)))
        for each in stores:
            await each.close()
        assert len(receiver.requests) == 1


async def test_what_a_dead_process_claimed_is_sent_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        table = NotifyTable(targets={"a": NoticeTarget(kind="webhook", url=receiver.url)})
        async with await SqliteStore.open(str(tmp_path / "s.db")) as store:
            monkeypatch.setattr(notices, "CLAIM_S", -1.0)
            dead = await looked(store, table, question())
            dead.close()
            await settled(dead)
            await settled(await looked(store, table, question()))
        assert receiver.requests


async def test_neither_an_early_nor_a_late_question_is_told_of(tmp_path: Path) -> None:
    with receiving() as receiver:
        table = NotifyTable(after_seconds=60, targets={"a": NoticeTarget(kind="webhook", url=receiver.url)})
        now = time.time()
        async with await SqliteStore.open(str(tmp_path / "s.db")) as store:
            await settled(
                await looked(store, table, question(asked_at=now - 30), question(id="conf_2", expires_at=now - 1))
            )
            assert await store.entries(KIND) == []
        assert receiver.requests == []


async def test_a_busy_target_is_tried_again_and_a_refusing_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "back_off", lambda attempt, chance: 0.0)
    with receiving() as receiver:
        table = NotifyTable(targets={"a": NoticeTarget(kind="webhook", url=receiver.url)})
        receiver.answers = [(503, {}), (500, {})]
        assert await deliver(a_notice(), table, no_launcher) == {"a": None}
        assert len(receiver.requests) == 3
        receiver.answers = [(404, {})]
        assert await deliver(a_notice(), table, no_launcher) == {"a": "answered 404"}
        receiver.answers = [(302, {"location": f"{receiver.url}/elsewhere"})] * 9
        assert await deliver(a_notice(), table, no_launcher) == {"a": "answered 302"}
        assert {each.path for each in receiver.requests} == {"/"}


class MailServer:
    """As much of SMTP as a client needs, in a thread."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        taken, _ = self._socket.accept()
        with taken, taken.makefile("rwb", buffering=0) as stream:
            stream.write(b"220 here\r\n")
            in_data = False
            for raw in stream:
                line = raw.decode().rstrip("\r\n")
                self.lines.append(line)
                if in_data:
                    in_data = line != "."
                    if not in_data:
                        stream.write(b"250 taken\r\n")
                elif line.upper() == "DATA":
                    in_data = True
                    stream.write(b"354 go on\r\n")
                elif line.upper() == "QUIT":
                    stream.write(b"221 bye\r\n")
                    return
                else:
                    stream.write(b"250 fine\r\n")

    def close(self) -> None:
        self._thread.join(LIMIT_S)
        self._socket.close()


async def test_a_mail_is_sent() -> None:
    server = MailServer()
    target = NoticeTarget(
        kind="email", host="127.0.0.1", port=server.port, security="none", sender="gate@x.example", to=["me@x.example"]
    )
    found = await deliver(
        a_notice(tool="shell\r\nBcc: evil@x.example"), NotifyTable(targets={"m": target}), no_launcher
    )
    server.close()
    assert found == {"m": None}
    assert "Subject: callgate waits for an answer: shell Bcc: evil@x.example" in server.lines
    assert not [line for line in server.lines if line.startswith("Bcc")]
    assert "Inbox: http://127.0.0.1:1/#/inbox" in server.lines


async def test_a_password_is_not_sent_in_the_clear() -> None:
    server = MailServer()  # offers no STARTTLS
    target = NoticeTarget(
        kind="email", host="127.0.0.1", port=server.port, sender="a@x.example", to=["b@x.example"], password_env="PATH"
    )
    with pytest.raises(notices.NotSent):
        await notices.send(a_notice(), target, no_launcher)
    server.close()
    assert not [line for line in server.lines if line.upper().startswith(("AUTH", "DATA"))]


def program(base: Path, text: str) -> Path:
    path = base / "tell"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_command_gets_the_notice_on_stdin_and_no_key(base: Path) -> None:
    path = program(
        base,
        "import os, sys\n"
        f"open({str(base / 'got')!r}, 'w').write(sys.stdin.read() + str('CALLGATE_SECRETS_X' in os.environ))",
    )
    settings(base, f'[notify.targets.me]\nkind = "command"\ncommand = ["{path}"]\n')
    env = {"CALLGATE_HOME": str(base / "h"), "CALLGATE_SECRETS_X": "k"}
    ran = run("notify", "test", "--json", cwd=base / "ws", env=env)
    assert (ran.code, ran.answer) == (0, {"ok": True, "targets": {"me": {"ok": True, "problem": None}}})
    got = (base / "got").read_text()
    assert json.loads(got.splitlines()[0])["type"] == "callgate.question_waiting"
    assert got.splitlines()[1] == "False"


def test_a_test_says_which_target_failed(base: Path) -> None:
    path = program(base, "raise SystemExit(3)")
    settings(
        base,
        f'[notify.targets.me]\nkind = "command"\ncommand = ["{path}"]\n'
        '[notify.targets.none]\nkind = "command"\ncommand = ["/no/such/program"]\n'
        '[notify.targets.web]\nkind = "slack"\nurl_env = "NOT_SET"\n',
    )
    env = {"CALLGATE_HOME": str(base / "h")}
    ran = run("notify", "test", cwd=base / "ws", env=env)
    assert ran.code == 1
    assert ran.out.splitlines()[0] == "me: exited with 3"
    assert ran.out.splitlines()[1].startswith("none: cannot be started")
    assert ran.out.splitlines()[2] == "web: the variable NOT_SET is empty"
    assert run("notify", "test", "--target", "you", cwd=base / "ws", env=env).code == 2
    settings(base, "")
    assert run("notify", "test", cwd=base / "ws", env=env).code == 2


def test_no_text_of_a_call_becomes_markup() -> None:
    evil = a_notice(
        tool="x <!channel> [a](http://e) *b*", summary="<http://e|click> & @here\n\u202eabc", workspace="/w"
    )
    said = json.dumps([slack(evil), teams(evil), as_json(evil)])
    assert "<!channel>" not in slack(evil)["text"]
    assert "<http://e|click>" not in slack(evil)["text"]
    assert slack(evil)["text"].count("<") == 1  # the link to the inbox
    assert "[a](http://e)" not in json.dumps(teams(evil), ensure_ascii=False)
    assert "\\u202e" not in json.dumps([slack(evil), teams(evil)])
    assert "conf_1" in said
    assert "\n" not in str(email(evil, "a@x", ["b@x"])["Subject"])


@pytest.mark.parametrize(
    "text",
    [
        '[notify.targets.a]\nkind = "webhook"',
        '[notify.targets.a]\nkind = "webhook"\nurl = "ftp://x"',
        '[notify.targets.a]\nkind = "slack"\nurl = "https://x"\nurl_env = "Y"',
        '[notify.targets.a]\nkind = "command"',
        '[notify.targets.a]\nkind = "email"\nhost = "x"',
        '[notify.targets.a]\nkind = "email"\nhost = "x"\nsender = "a@b"\nto = ["c@d\\nBcc: e@f"]',
        '[notify.targets.a]\nkind = "email"\nhost = "x"\nsender = "a@b"\nto = ["c@d"]\nsecurity = "none"\npassword_env = "P"',
        '[notify.targets.a]\nkind = "pigeon"',
        '[notify.targets."A b"]\nkind = "command"\ncommand = ["x"]',
        '[notify.targets.a]\nkind = "webhook"\nurl_env = "CALLGATE_SECRETS_KEY"',
        "[notify]\nafter_seconds = -1",
        '[notify]\nlink = "javascript:alert(1)"',
    ],
)
def test_wrong_settings_are_named(text: str, base: Path) -> None:
    settings(base, text)
    with pytest.raises(SettingsError) as raised:
        load_user(Home(str(base / "h")))
    assert "notify" in str(raised.value)


def test_a_workspace_cannot_set_it(base: Path) -> None:
    (base / "ws" / ".callgate").mkdir()
    (base / "ws" / ".callgate" / "settings.toml").write_text('[notify.targets.a]\nkind = "command"\ncommand = ["x"]\n')
    with pytest.raises(SettingsError, match="allowed only in your own settings"):
        load_workspace(str(base / "ws"))


def test_nothing_of_it_is_loaded_where_no_target_is_named(base: Path) -> None:
    code = "import sys, callgate.instance.instance\nprint('callgate.features.reporting.notices' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert ran.stdout == "False\n"
