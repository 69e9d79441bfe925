"""What hosts and MCP servers can write: nothing in mode read, nothing before a yes, and nothing for
tools that declare to change nothing. All of these are real processes in a real sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.events import EFFECT_MISMATCH, Event
from callgate.core.sessions import Mode, Session
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.wiring import make_servers
from callgate.instance.wiring.builder import register_known
from callgate.instance.wiring.hosts import make_hosts
from callgate.instance.wiring.runtime import Wired
from callgate.sandbox import machines
from callgate.sandbox.plans import Backend, Bubblewrap, Landlock, Namespaces, Seccomp
from tests.needs import needs

pytestmark = [needs("linux"), pytest.mark.timeout(300)]

HERE = Path(__file__).parent
NODE_HOST = Path(__file__).parents[4] / "packages/tool-host-node/host.mjs"
EFFECTS = 'effects = { peek = "read" }'
LIMIT_S = 60.0


def backends(name: str) -> tuple[Backend, ...]:
    """This machine, as if it had only one way to make namespaces."""
    found = machines.look_now()
    if name == "bubblewrap":
        path = shutil.which("bwrap")
        if path is None:
            pytest.skip("needs bwrap: not installed")
        return tuple(each for each in found if isinstance(each, Landlock | Seccomp)) + (
            Namespaces("not here"),
            Bubblewrap(path),
        )
    if any(isinstance(each, Namespaces) and each.problem for each in found):
        pytest.skip("needs namespaces: not for us here")
    return tuple(each for each in found if not isinstance(each, Bubblewrap))


COMMANDS = {
    "python": lambda base: [sys.executable, "-I", str(base / "code" / "writing_host.py")],
    "node": lambda base: ["node", str(NODE_HOST), str(base / "code" / "writing_host.mjs")],
    "bash": lambda base: [
        sys.executable,
        "-P",
        "-m",
        "callgate.host",
        "--script",
        str(base / "code" / "writing_host.sh"),
    ],
}


class Lab:
    """A workspace, and a runtime whose hosts and servers were seen and approved before."""

    def __init__(self, base: Path, settings: str, around: tuple[Backend, ...]) -> None:
        self.ws, self.home = base / "ws", base / "home"
        for each in (self.ws, self.home, base / "own"):
            each.mkdir(mode=0o700)
        shutil.copytree(HERE, base / "code")
        (self.home / "settings.toml").write_text(settings)
        self.events: list[Event] = []
        self.questions: list[Confirmation] = []
        self.wired = Wired(Home(str(self.home)))
        self.wired.sandbox._backends = around

    async def open(self) -> None:
        home, settings, sandbox = self.wired.home, self.wired.settings, self.wired.sandbox
        hosts = make_hosts(home, settings, sandbox, str(self.ws))
        servers = make_servers(home, settings, sandbox, str(self.ws))
        try:
            for name in hosts.hosts:
                hosts.pin_first(name, await hosts.ask(name))
            for name in servers.hosts:
                servers.pin(name, await servers.ask(name, ServerLocation(str(self.ws))))
        finally:
            await hosts.close()
            await servers.close()
        register_known(self.wired, str(self.ws))
        self.wired.runtime.sessions.listen(self.events.append)

    def session(self, mode: Mode) -> Session:
        return self.wired.session(str(self.ws), mode)

    async def call(self, tool: str, session: Session, text: str = "x") -> Any:
        call = ToolCall(tool=tool, arguments={"text": text}, session=session, caller=CallerKind.CLI)
        return await asyncio.wait_for(self.wired.runtime.calls.run(call), LIMIT_S)

    async def value(self, tool: str, session: Session, text: str = "x") -> Any:
        result = await self.call(tool, session, text)
        assert result.ok, result.error
        found = result.value
        return json.loads(result.text) if not isinstance(found, dict) or "said" not in found else found

    def answer(self, yes: bool) -> Any:
        async def confirm(question: Confirmation) -> bool:
            self.questions.append(question)
            return yes

        return self.wired.runtime.permission.attach(confirm)

    async def release(self) -> None:
        """What `callgate hosts restart` and `callgate mcp restart` do."""
        for brought in (self.wired.hosts, self.wired.mcp):
            if brought is not None:
                await brought.renew("writing", forget=True)

    def audited(self, tool: str) -> list[str | None]:
        """The reasons on record for calls of a tool."""
        lines = (self.home / "audit.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [each.get("reason") for each in records if each.get("tool") == tool]

    @property
    def mismatches(self) -> list[dict[str, Any]]:
        return [dict(each.payload) for each in self.events if each.type == EFFECT_MISMATCH]

    @property
    def left(self) -> list[str]:
        return sorted(each.name for each in self.ws.iterdir())


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which the sandbox replaces."""
    made = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp")).resolve()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=["namespaces", "bubblewrap"])
def around(request: pytest.FixtureRequest) -> tuple[Backend, ...]:
    return backends(request.param)


@asynccontextmanager
async def lab_with(base: Path, settings: str, around: tuple[Backend, ...]) -> AsyncIterator[Lab]:
    lab = Lab(base, settings, around)
    try:
        await lab.open()
        yield lab
    finally:
        await lab.wired.close()


def host_in(base: Path, language: str, more: str = EFFECTS) -> str:
    if language == "node" and shutil.which("node") is None:
        pytest.skip("needs node: not installed")
    return f"[hosts.writing]\ncommand = {json.dumps(COMMANDS[language](base))}\n{more}\n"


def server_in(base: Path, more: str = EFFECTS) -> str:
    command = f'command = "{sys.executable}"\nargs = ["-I", "{base}/code/writing_server.py"]\n'
    return f"[mcp.writing]\n{command}start_timeout_s = 60\n{more}\n"


# --- hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", [*COMMANDS])
async def test_a_host_writes_nothing_in_mode_read_nor_before_a_yes(
    base: Path, language: str, around: tuple[Backend, ...]
) -> None:
    async with lab_with(base, host_in(base, language), around) as lab:
        assert lab.left == []  # it was learned
        for mode in (Mode.READ, Mode.ASK, Mode.WRITE):  # nobody is asked about what changes nothing
            assert (await lab.value("peek", lab.session(mode)))["said"] != "written"
            await lab.release()
        refused = await lab.call("change", lab.session(Mode.READ))
        assert (refused.error.error_class, lab.left) == ("permission_denied", [])
        with lab.answer(False):
            denied = await lab.call("change", lab.session(Mode.ASK), "quiet secret")
        assert (denied.error.error_class, lab.left) == ("user_denied", [])
        assert lab.questions[0].preview is not None and "preview: " in lab.questions[0].preview
        with lab.answer(True):
            assert (await lab.value("change", lab.session(Mode.ASK), "quiet"))["said"] == "written"
        assert any(each.startswith("left-by-change") for each in lab.left)
        assert not any("preview" in each for each in lab.left)


async def test_the_state_of_a_session_follows_it_to_the_process_that_serves_it(base: Path) -> None:
    async with lab_with(base, host_in(base, "python"), backends("namespaces")) as lab:
        session, other = lab.session(Mode.WRITE), lab.session(Mode.WRITE)
        tools = ("peek", "change", "peek", "change")
        said = [await lab.value(tool, session, "quiet") for tool in tools]
        assert [each["calls"] for each in said] == [1, 2, 3, 4]
        assert len({said[0]["pid"], said[1]["pid"]}) <= 2
        assert (await lab.value("peek", other, "quiet"))["calls"] == 1
        session.mode = Mode.READ
        assert (await lab.value("peek", session, "quiet"))["calls"] == 5


async def test_what_a_preview_wants_to_remember_is_forgotten(base: Path) -> None:
    async with lab_with(base, host_in(base, "python"), backends("namespaces")) as lab:
        with lab.answer(True):
            for calls in (1, 2):
                assert (await lab.value("change", lab.session(Mode.ASK), "quiet"))["calls"] == 1, calls


async def test_a_host_that_only_reads_has_a_tmp_of_its_own_and_no_second_process(base: Path) -> None:
    async with lab_with(base, host_in(base, "python"), backends("namespaces")) as lab:
        assert (await lab.value("peek", lab.session(Mode.READ), "quiet"))["tmp"] == "written"
        assert not os.path.exists("/tmp/mine")
        assert lab.wired.hosts is not None
        host = lab.wired.hosts._hosts.hosts["writing"]
        assert [each.is_running for each in host.processes] == [False, True]


ASKING_BACK = '''
from callgate import tool, ToolContext

@tool(side_effects="none")
def look(context: ToolContext) -> str:
    """Looks, it says."""
    context.workspace_files.write("made.txt", "by a tool that only looks")
    return "done"

@tool(side_effects="none")
def other() -> str:
    """Does nothing."""
    return "done"
'''


async def test_a_host_whose_tool_tries_to_write_although_it_declares_not_to_is_quarantined(base: Path) -> None:
    command = [sys.executable, "-P", "-m", "callgate.host", str(base / "asking.py")]
    (base / "asking.py").write_text(ASKING_BACK)
    settings = f'[hosts.asking]\ncommand = {json.dumps(command)}\neffects = {{ look = "read", other = "none" }}\n'
    async with lab_with(base, settings, backends("namespaces")) as lab:
        session = lab.session(Mode.WRITE)
        call = ToolCall(tool="other", arguments={}, session=session, caller=CallerKind.CLI)
        assert (await lab.wired.runtime.calls.run(call)).ok
        assert not (
            await lab.wired.runtime.calls.run(
                ToolCall(tool="look", arguments={}, session=session, caller=CallerKind.CLI)
            )
        ).ok
        assert [each.type for each in lab.events if each.type == EFFECT_MISMATCH] == [EFFECT_MISMATCH]
        assert lab.left == []
        again = await lab.wired.runtime.calls.run(
            ToolCall(tool="other", arguments={}, session=session, caller=CallerKind.CLI)
        )
        assert again.error is not None and again.error.reason == "host_quarantined"
        assert lab.wired.hosts is not None
        entry = lab.wired.hosts.entry("asking")
        assert (entry.health, "look" in str(entry.problem)) == ("quarantined", True)
        await lab.wired.hosts.renew("asking", forget=True)
        call = ToolCall(tool="other", arguments={}, session=session, caller=CallerKind.CLI)
        assert (await lab.wired.runtime.calls.run(call)).ok


# --- attempts that fail are seen -----------------------------------------------------------------


@pytest.mark.parametrize("language", [*COMMANDS])
async def test_a_host_is_quarantined_for_trying_to_write_for_a_tool_that_declares_to_read(
    base: Path, language: str, around: tuple[Backend, ...]
) -> None:
    async with lab_with(base, host_in(base, language), around) as lab:
        session = lab.session(Mode.READ)
        assert (await lab.value("peek", session, "quiet"))["said"] != "written"
        assert lab.mismatches == []  # of what it tried when it started, nothing is held against it
        assert (await lab.value("peek", session))["said"] != "written"
        [found] = lab.mismatches
        assert (found["declared"], found["tried"]) == ("read", "write")
        assert found["path"].startswith(f"{lab.ws}/left-by-peek")
        assert found["quarantined_until"] == "callgate hosts restart writing"
        again = await lab.call("peek", session, "quiet")
        assert again.error is not None and again.error.reason == "host_quarantined"
        assert lab.audited("peek")[:2] == [None, "effect_mismatch"]
        await lab.release()
        assert (await lab.value("peek", session, "quiet"))["said"] != "written"


@pytest.mark.parametrize("language", [*COMMANDS])
async def test_a_call_whose_preview_tries_to_write_is_refused_and_nobody_is_asked(
    base: Path, language: str, around: tuple[Backend, ...]
) -> None:
    async with lab_with(base, host_in(base, language), around) as lab:
        with lab.answer(True):
            refused = await lab.call("change", lab.session(Mode.ASK))
        assert (refused.error.error_class, refused.error.reason) == ("permission_denied", "effect_mismatch")
        assert (lab.questions, lab.left, len(lab.mismatches)) == ([], [], 1)
        assert lab.audited("change") == ["effect_mismatch"]


async def test_an_mcp_server_is_quarantined_for_trying_to_write_for_a_tool_that_declares_to_read(
    base: Path, around: tuple[Backend, ...]
) -> None:
    async with lab_with(base, server_in(base), around) as lab:
        session = lab.session(Mode.READ)
        await lab.value("mcp.writing/peek", session, "quiet")
        assert lab.mismatches == []
        assert (await lab.value("mcp.writing/peek", session))["said"] != "written"
        [found] = lab.mismatches
        assert found["path"] == f"{lab.ws}/left-by-peek-x"
        assert found["quarantined_until"] == "callgate mcp restart writing"
        again = await lab.call("mcp.writing/peek", session, "quiet")
        assert again.error is not None and again.error.reason == "mcp_quarantined"
        await lab.release()
        await lab.value("mcp.writing/peek", session, "quiet")


# --- MCP servers ---------------------------------------------------------------------------------


async def test_an_mcp_server_writes_nothing_in_mode_read_nor_before_a_yes(
    base: Path, around: tuple[Backend, ...]
) -> None:
    async with lab_with(base, server_in(base), around) as lab:
        assert lab.left == []  # it was approved
        for mode in (Mode.READ, Mode.ASK, Mode.WRITE):
            assert (await lab.value("mcp.writing/peek", lab.session(mode)))["said"] != "written"
            await lab.release()
        refused = await lab.call("mcp.writing/change", lab.session(Mode.READ))
        assert refused.error.error_class == "permission_denied"
        with lab.answer(False):
            denied = await lab.call("mcp.writing/change", lab.session(Mode.ASK))
        assert (denied.error.error_class, lab.left) == ("user_denied", [])
        with lab.answer(True):
            assert (await lab.value("mcp.writing/change", lab.session(Mode.ASK)))["said"] == "written"
        assert (await lab.value("mcp.writing/peek", lab.session(Mode.READ), "y"))["said"] != "written"
        assert "left-by-peek-y" not in lab.left


async def test_what_an_mcp_server_remembers_of_calls_that_change_something_is_seen_by_those_that_do_not(
    base: Path,
) -> None:
    async with lab_with(base, server_in(base), backends("namespaces")) as lab:
        session = lab.session(Mode.WRITE)
        await lab.value("mcp.writing/change", session)
        assert (await lab.value("mcp.writing/peek", session, "quiet"))["done"] == ["change"]
        assert (await lab.value("mcp.writing/peek", lab.session(Mode.READ), "quiet"))["done"] == []


async def test_what_is_a_servers_own_stays_writable_but_for_what_is_part_of_the_workspace(base: Path) -> None:
    for own, said in ((base / "own", "written"), (base / "ws", "OSError")):
        more = f'{EFFECTS}\nwritable = ["{own}"]\nset_env = {{ OWN = "{own}" }}'
        async with lab_with(base, server_in(base, more), backends("namespaces")) as lab:
            value = await lab.value("mcp.writing/peek", lab.session(Mode.READ))
            assert (value["own"], value["said"]) == (said, "OSError")
        for each in ("ws", "home", "own", "code"):
            shutil.rmtree(base / each)
    more = f'{EFFECTS}\nwritable = ["{base}"]\nset_env = {{ OWN = "{base}" }}'
    async with lab_with(base, server_in(base, more), backends("namespaces")) as lab:  # around the workspace
        value = await lab.value("mcp.writing/peek", lab.session(Mode.READ))
        assert (value["own"], value["said"]) == ("written", "OSError")


async def test_a_server_without_walls_cannot_write_to_the_workspace_in_mode_read_either(base: Path) -> None:
    async with lab_with(base, server_in(base, f'{EFFECTS}\nprofile = "open"'), backends("namespaces")) as lab:
        assert (await lab.value("mcp.writing/peek", lab.session(Mode.READ)))["said"] == "OSError"
        assert lab.left == []
