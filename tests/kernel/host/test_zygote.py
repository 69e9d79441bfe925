"""Hosts from a warm process are hosts like any other, only sooner."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from callgate import Gate
from callgate.config.home import Home
from callgate.core.calls import ToolCall
from callgate.core.commands import Command, Launcher, OnOutput, Running, Warm
from callgate.core.sessions import Mode, Session
from callgate.core.tools import ToolContext
from callgate.dispatch.commands.sandboxes import OFF, Enclosure, Sandbox, Surroundings
from callgate.instance.wiring.builder import register_configured
from callgate.instance.wiring.runtime import Wired
from callgate.sandbox.jails import Limits
from callgate.sandbox.processes import zygotes
from callgate.sandbox.processes.broker_client import BrokerProcess
from callgate.sandbox.processes.zygotes import MOST_FAILURES, WarmLauncher, Zygote, Zygotes
from callgate.sandbox.profiles import Profile
from callgate.sources.host_handshake import warm
from callgate.sources.host_links import HostExited
from callgate.sources.hosts import Host, HostSettings
from tests.kernel.gate import isolated_tools
from tests.needs import needs

pytestmark = needs("linux")

TOOLS = '''
import gc, os, re, resource, signal, sys, threading
from callgate import tool

@tool(side_effects="none")
def found() -> dict[str, object]:
    """What the process finds around it."""
    status = open("/proc/self/status").read()
    return {
        "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path, "arguments": sys.argv[1:],
        "files": sorted(os.listdir("/proc/self/fd")), "umask": os.umask(0o77), "collects": gc.isenabled(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()], "thread": threading.current_thread().name,
        "signals": {each.name: str(signal.getsignal(each)) for each in signal.valid_signals() if isinstance(each, signal.Signals)},
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
        "kept": re.findall(r"^(?:Cap|Seccomp|NoNewPrivs|Sig[BI]).*", status, re.M), "children": len(os.listdir("/proc/self/task")),
    }

@tool(side_effects="none")
def who() -> list[object]:
    """The process, and whether Python was started in it."""
    return [os.getpid(), "callgate.host" not in open("/proc/self/cmdline").read().split("\\0")[1:4]]

@tool(side_effects="none")
def tokens() -> list[str]:
    """What looks like a token in the memory of this process."""
    found = set()
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in open("/proc/self/maps"):
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if " rw" in line and not "[v" in line:
                memory.seek(first)
                found |= set(re.findall(rb"tok[e]n_[0-9a-f]{24}", memory.read(last - first)))
    return sorted(map(bytes.decode, found))

@tool(side_effects="none")
def leave_behind(path: str) -> int:
    """Have a pool of threads, and something to do at the end."""
    import atexit
    from concurrent.futures import ThreadPoolExecutor
    globals()["pool"] = ThreadPoolExecutor(1)
    atexit.register(lambda: open(path, "w").write("done"))
    return pool.submit(os.getpid).result()

@tool(side_effects="none")
def rebel() -> int:
    """Answer a wish to end with the end of who would see to it; gives a child that does not heed it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        threading.Event().wait(60)
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGKILL))
    return child

@tool(side_effects="none")
def end(code: int) -> None:
    """End the process."""
    os._exit(code) if code < 256 else os.kill(os.getpid(), code - 256)
'''


def usual() -> Command:
    return Command(argv=(), cwd="/", env=dict(os.environ), warm=Warm(("tools.py",), ()))


class Cold:
    """The same launcher, told of nothing that could be warm."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        return await self._launcher.start(msgspec.structs.replace(command, warm=None), on_output)


class Ground:
    def __init__(self, directory: Path) -> None:
        self.workspace = directory / "ws"
        self.workspace.mkdir()
        (self.workspace / "tools.py").write_text(TOOLS)
        home = directory / "home"
        said = Surroundings(home=str(directory), callgate_home=str(home), limits=Limits(open_files=200))
        self.sandboxes = {Profile.WORKSPACE: Sandbox(said), None: Sandbox(OFF)}
        self.hosts: list[Host] = []

    def launcher(self, profile: Profile | None) -> Launcher:
        session = Session(workspace=str(self.workspace), mode=Mode.WRITE)
        return self.sandboxes[profile].launcher(Enclosure(profile), session)

    def host(self, launcher: Launcher, **env: str) -> Host:
        settings = HostSettings(
            name="tools",
            command=(sys.executable, "-m", "callgate.host", "tools.py"),
            cwd=str(self.workspace),
            env={**os.environ, **env},
        )
        self.hosts.append(Host(settings, lambda: launcher))
        return self.hosts[-1]

    def context(self) -> ToolContext:
        def no_files() -> NoReturn:
            raise AssertionError

        return ToolContext(
            session_id="s",
            turn_id=None,
            tool_use_id="t",
            workspace_path=str(self.workspace),
            open_files=no_files,
            publish=lambda *said: None,
        )

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in self.hosts))
        for sandbox in self.sandboxes.values():
            sandbox.close()


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path)
    for sandbox in ground.sandboxes.values():
        await sandbox.ready()
        sandbox.warm(os.environ)
    yield ground
    await ground.close()


@pytest.fixture
async def warmed(ground: Ground) -> AsyncIterator[tuple[Zygote, Launcher]]:
    all, broker = Zygotes(), BrokerProcess()
    all.prepare(os.environ)
    zygote = all.suiting(usual())
    assert zygote is not None
    yield zygote, WarmLauncher(broker, all, None)
    await ground.close()
    all.close()
    broker.close()


async def ask(ground: Ground, host: Host, tool: str, **arguments: Any) -> Any:
    async def nothing(asked: object) -> None: ...

    returned = await host.execute(tool, arguments, ground.context(), lambda event: None, nothing, lambda asked: None)
    return returned.result.value.get("result")


@pytest.mark.parametrize("profile", [None, Profile.WORKSPACE])
async def test_a_host_from_a_zygote_finds_what_one_that_is_started_finds(
    ground: Ground, profile: Profile | None
) -> None:
    launcher = ground.launcher(profile)
    env = {"ONLY": "this", "PYTHONPATH": "lib:/usr/share", "TZ": "Asia/Tokyo"}
    both = [ground.host(launcher, **env), ground.host(Cold(launcher), **env)]
    assert [(await ask(ground, each, "who"))[1] for each in both] == [True, False]
    forked, started = [await ask(ground, each, "found") for each in both]
    for each in (forked, started):
        del each["env"]["CALLGATE_CALL"]  # drawn anew for each command
        each["env"].pop("LC_CTYPE", None)  # which Python sets itself where there is no locale
    assert forked == started


@pytest.mark.parametrize(("code", "expected"), [(7, (7, None)), (256 + signal.SIGKILL, (None, signal.SIGKILL))])
async def test_how_a_host_from_a_zygote_ended_is_known(
    ground: Ground, code: int, expected: tuple[int | None, int | None]
) -> None:
    host = ground.host(ground.launcher(None))
    assert (await ask(ground, host, "who"))[1] is True
    with pytest.raises(HostExited) as gone:
        await ask(ground, host, "end", code=code)
    assert (gone.value.exit.code, gone.value.exit.signal) == expected


async def test_a_host_from_a_zygote_does_at_its_end_what_python_does(ground: Ground, tmp_path: Path) -> None:
    host, done = ground.host(ground.launcher(None)), tmp_path / "done"
    assert (await ask(ground, host, "who"))[1] is True
    await ask(ground, host, "leave_behind", path=str(done))
    await host.close()
    assert done.read_text() == "done"


@pytest.mark.spec("T45")
async def test_a_host_that_ends_its_own_keeper_does_not_outlive_its_zygote(
    ground: Ground, warmed: tuple[Zygote, Launcher]
) -> None:
    zygote, launcher = warmed
    pid = await ask(ground, ground.host(launcher), "rebel")
    watched = os.pidfd_open(pid)
    zygote.close()
    assert await asyncio.to_thread(select.select, [watched], [], [], 10) == ([watched], [], [])
    os.close(watched)


async def test_nothing_of_one_host_is_in_the_memory_of_the_next(ground: Ground) -> None:
    launcher = ground.launcher(None)
    first, second = ground.host(launcher, TOKEN=f"token_{'a1b2c3d4' * 3}"), ground.host(launcher)
    assert await ask(ground, first, "tokens") == [f"token_{'a1b2c3d4' * 3}"]
    assert (await ask(ground, second, "who"))[1] is True
    assert await ask(ground, second, "tokens") == []


async def test_the_death_of_a_zygote_harms_no_host_and_the_next_has_another(
    ground: Ground, warmed: tuple[Zygote, Launcher]
) -> None:
    zygote, launcher = warmed
    before = ground.host(launcher)
    pid, _ = await ask(ground, before, "who")
    first = zygote.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    after = ground.host(launcher)
    assert (await ask(ground, after, "who"))[1] is True
    assert zygote.pid != first
    assert (await ask(ground, before, "who"))[0] == pid


async def test_a_zygote_that_hangs_is_not_waited_for_and_the_next_host_has_another(
    ground: Ground, warmed: tuple[Zygote, Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote, launcher = warmed
    assert (await ask(ground, ground.host(launcher), "who"))[1] is True
    assert (stuck := zygote.pid) is not None
    os.kill(stuck, signal.SIGSTOP)
    with monkeypatch.context() as hurried:
        hurried.setattr(zygotes, "PATIENCE_S", 0.1)
        assert (await ask(ground, ground.host(launcher), "who"))[1] is False
    assert (await ask(ground, ground.host(launcher), "who"))[1] is True
    assert zygote.pid != stuck


async def test_functions_of_a_gate_come_from_its_zygote(tmp_path: Path) -> None:
    async with Gate(tmp_path, [isolated_tools.process], home=tmp_path / "home") as gate:
        pid = (await gate.call("process")).value
        assert "zygote.serve" in Path(f"/proc/{pid}/cmdline").read_text()


def test_hosts_of_the_settings_come_from_a_zygote_in_a_runtime_that_is_warmed(tmp_path: Path) -> None:
    home, workspace = Home.from_environment(), tmp_path / "ws"
    workspace.mkdir()
    (workspace / "tools.py").write_text(TOOLS)
    command = json.dumps([sys.executable, "-m", "callgate.host", str(workspace / "tools.py")])
    Path(home.path).mkdir(mode=0o700, parents=True)
    Path(home.settings).write_text(f'[hosts.tools]\ncommand = {command}\neffect = "none"\n')

    async def is_forked(warmed: bool) -> bool:
        if warmed:
            wired.warm()
        result = await wired.runtime.calls.run(
            ToolCall(tool="who", arguments={}, session=wired.session(str(workspace)))
        )
        await wired.close()
        return bool(result.value[1])

    for warmed in (False, True):
        wired = Wired(home)
        register_configured(wired, str(workspace))
        assert asyncio.run(is_forked(warmed)) is warmed


async def test_where_no_zygote_works_hosts_are_started_and_it_is_given_up(ground: Ground) -> None:
    all, broker = Zygotes("/bin/false"), BrokerProcess()
    all.prepare(os.environ)
    launcher = WarmLauncher(broker, all, None)
    for _ in range(MOST_FAILURES):
        assert (await ask(ground, ground.host(launcher), "who"))[1] is False
    assert all.suiting(usual()) is None
    await ground.close()
    all.close()
    broker.close()


READ_AT_START = ("PYTHONHASHSEED", "PYTHONUTF8", "PYTHONHOME", "LC_ALL", "LD_PRELOAD", "HOME")


def test_a_variable_that_python_reads_at_its_start_needs_another_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUTF8", "1")
    all = Zygotes("/bin/true")
    assert all.suiting(usual()) is None  # nobody has asked for it
    all.prepare(os.environ)
    zygote = all.suiting(usual())
    assert zygote is not None
    assert all.suiting(msgspec.structs.replace(usual(), warm=None)) is None
    for name in READ_AT_START:
        assert all.suiting(msgspec.structs.replace(usual(), env={**os.environ, name: "/another"})) is None
    more = msgspec.structs.replace(usual(), env={**os.environ, "PYTHONPATH": "/x", "TOKEN": "x"})
    assert all.suiting(more) is zygote
    fewer = msgspec.structs.replace(usual(), env={key: os.environ[key] for key in os.environ if key != "PYTHONUTF8"})
    all.prepare(fewer.env)
    assert all.suiting(fewer) not in (None, zygote)
    all.close()


@pytest.mark.parametrize("name", READ_AT_START)
def test_no_zygote_starts_with_what_could_bring_the_code_of_another_into_it(name: str) -> None:
    all, env = Zygotes("/bin/true"), {**os.environ, name: "/another"}
    all.prepare(env)
    assert all.suiting(msgspec.structs.replace(usual(), env=env)) is None
    all.close()


async def test_no_file_of_a_workspace_is_taken_for_a_module_of_a_zygote(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned, broker = tmp_path / "poisoned", BrokerProcess()
    for name in ("traceback", "threading", "struct", "callgate", "msgspec"):
        (tmp_path / f"{name}.py").write_text(f"open({str(poisoned)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    all = Zygotes()
    all.prepare(os.environ)
    assert (await ask(ground, ground.host(WarmLauncher(broker, all, None)), "who"))[1] is True
    await ground.close()
    all.close()
    broker.close()
    assert not poisoned.exists()


BIN = os.path.dirname(sys.executable)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([sys.executable, "-m", "callgate.host", "a.py"], Warm(("a.py",), ("/w", "/w/lib", "/x"))),
        ([sys.executable, "-P", "-m", "callgate.host", "a.b"], Warm(("a.b",), ("/w/lib", "/x"))),
        (["python", "-m", "callgate.host", "--script", "a", "b"], Warm(("--script", "a", "b"), ("/w", "/w/lib", "/x"))),
        ([f"{BIN}/callgate", "host", "a.py"], Warm(("a.py",), (BIN, "/w/lib", "/x"))),
        ([f"{BIN}/callgate", "host", "check", "a.py"], None),
        ([f"{BIN}/callgate", "call", "a.py"], None),
        ([sys.executable, "-m", "callgate.host", "--help"], None),
        ([sys.executable, "-m", "callgate.host"], None),
        ([sys.executable, "-I", "-m", "callgate.host", "a.py"], None),
        ([sys.executable, "-m", "http.server", "a.py"], None),
        ([sys.executable, "a.py"], None),
        (["/opt/other/bin/python", "-m", "callgate.host", "a.py"], None),
        (["/opt/other/bin/callgate", "host", "a.py"], None),
        (["no-such-program", "-m", "callgate.host", "a.py"], None),
    ],
)
def test_only_our_own_host_in_our_own_python_is_taken_from_a_zygote(command: list[str], expected: Warm | None) -> None:
    assert warm(command, "/w", {"PATH": BIN, "PYTHONPATH": "lib:/x"}) == expected


RUNTIME = """
import asyncio, os, sys
from pathlib import Path
from tests.kernel.host.test_zygote import Ground, Profile, ask

async def main():
    ground = Ground(Path(sys.argv[1]))
    sandbox = ground.sandboxes[Profile.WORKSPACE if sys.argv[2] else None]
    await sandbox.ready()
    sandbox.warm(os.environ)
    host = ground.host(ground.launcher(Profile.WORKSPACE if sys.argv[2] else None))
    assert (await ask(ground, host, "who"))[1]
    print(*(each.pid for each in sandbox.launchers.zygotes._all.values()), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("profile", ["", "workspace"])
def test_nothing_of_a_zygote_outlives_a_runtime_that_is_killed(tmp_path: Path, profile: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNTIME, str(tmp_path), profile], stdout=subprocess.PIPE, text=True
    ) as runtime:
        assert runtime.stdout is not None
        zygote = int(runtime.stdout.readline())
        family = [zygote, *_below(zygote)]
        assert len(family) >= 4  # a broker, a keeper, a host
        watched = [os.pidfd_open(pid) for pid in family]
        runtime.kill()
    for each in watched:
        assert select.select([each], [], [], 10)[0]
        os.close(each)


def _below(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    children = [int(each) for task in tasks.iterdir() for each in (task / "children").read_text().split()]
    return [*children, *(each for child in children for each in _below(child))]


def test_the_pattern_of_tokens_does_not_find_itself() -> None:
    assert not re.search(r"tok[e]n_[0-9a-f]{24}", TOOLS)
