"""What is around a call's commands: by its mode, by what it asks for, by what the machine can do."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.core.effects import SideEffects
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.sessions import Mode, Root, Session
from callgate.dispatch.commands import sandboxes
from callgate.dispatch.commands.sandboxes import OFF, Enclosure, Sandbox, Surroundings
from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.policy.commands import parse_pattern
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox import machines
from callgate.sandbox.jails import Limits, Network
from callgate.sandbox.plans import Bubblewrap, CannotGuarantee, Landlock, Namespaces, Seccomp
from callgate.sandbox.profiles import Profile
from callgate.tools.shell import Shell
from tests.support import Bench, FakeHuman, make_tool

NOT_HERE = (
    Landlock(7),
    Seccomp(True),
    Namespaces("user namespaces are off"),
    Bubblewrap(None, "not installed"),
)
NOTHING = (Landlock(0), Seccomp(False), Namespaces("off"), Bubblewrap(None, "not installed"))


@pytest.fixture(scope="module")
def backends() -> Any:
    found = machines.look_now()
    if all(each.problem for each in found if each.name in ("namespaces", "bubblewrap")):
        pytest.skip("needs namespaces: not for us here")
    return found


@pytest.fixture
def base() -> Iterator[Path]:
    """Not in /tmp, which commands do not see."""
    with tempfile.TemporaryDirectory(prefix="callgate-", dir="/var/tmp") as made:
        base = Path(made)
        for name in ("ws", "home/.ssh", "home/.callgate", "other"):
            (base / name).mkdir(parents=True)
        (base / "home/.ssh/id").write_text("key")
        yield base


def said(base: Path, **more: Any) -> Surroundings:
    return Surroundings(home=str(base / "home"), callgate_home=str(base / "home/.callgate"), **more)


@pytest.fixture
async def sandbox(base: Path, backends: Any) -> AsyncIterator[Sandbox]:
    made = Sandbox(said(base), backends)
    yield made
    made.close()


def bench(base: Path, sandbox: Sandbox, *, mode: Mode = Mode.WRITE, **more: Any) -> Bench:
    return Bench(base / "ws", Shell, sandbox=sandbox, mode=mode, **more)


# --- which one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "more", "network", "expected"),
    [
        (Mode.READ, {}, False, Enclosure(Profile.READ, read_only=True)),
        (Mode.READ, {}, True, Enclosure(Profile.READ, widened=True, read_only=True)),
        (Mode.READ, {"profile": Profile.OPEN}, False, Enclosure(Profile.READ, read_only=True)),
        (Mode.ASK, {}, False, Enclosure(Profile.WORKSPACE)),
        (Mode.WRITE, {}, False, Enclosure(Profile.WORKSPACE)),
        (Mode.WRITE, {}, True, Enclosure(Profile.WORKSPACE, Network.ALL, widened=True)),
        (Mode.WRITE, {"network": Network.LOOPBACK}, False, Enclosure(Profile.WORKSPACE, Network.LOOPBACK)),
        (Mode.WRITE, {"network": Network.ALL}, True, Enclosure(Profile.WORKSPACE, Network.ALL)),
        (Mode.WRITE, {"profile": Profile.OPEN}, True, Enclosure(Profile.OPEN, Network.ALL)),
        (Mode.READ, {"profile": None}, True, Enclosure(None, Network.ALL)),
    ],
)
def test_the_mode_the_settings_and_the_call_say_what_is_around_it(
    base: Path, backends: Any, mode: Mode, more: Any, network: bool, expected: Enclosure
) -> None:
    session = Session(workspace=str(base / "ws"), mode=mode)
    assert Sandbox(said(base, **more), backends).enclosure(session, {"network": network}) == expected


def test_a_machine_that_cannot_keep_it_promises_nothing_to_mode_read(base: Path) -> None:
    session = Session(workspace=str(base / "ws"), mode=Mode.READ)
    assert Sandbox(said(base), NOTHING).enclosure(session, {}) == Enclosure(Profile.READ)


# --- what it does --------------------------------------------------------------------------------


async def test_mode_read_runs_commands_unasked_where_they_change_nothing(base: Path, sandbox: Sandbox) -> None:
    (base / "ws/a").write_text("here\n")
    seen = bench(base, sandbox, mode=Mode.READ)
    result = await seen.run("shell", {"command": "cat a; touch b; chmod 777 a; cat ~/.ssh/id"})
    assert (result.value["stdout"], os.listdir(base / "ws")) == ("here\n", ["a"])
    assert (base / "ws/a").stat().st_mode & 0o777 != 0o777


async def test_only_tools_that_run_in_the_sandbox_run_in_mode_read(base: Path, sandbox: Sandbox) -> None:
    execute = make_tool("execute", effect=Shell.definition.side_effects)
    other = Bench(base / "ws", execute, sandbox=sandbox, mode=Mode.READ)
    assert (await other.run("execute")).error.reason == "mode_read"


@pytest.mark.spec("T06", "T07")
async def test_the_workspace_is_writable_but_for_what_is_protected(base: Path, sandbox: Sandbox) -> None:
    (base / "ws/.vscode").mkdir()
    command = (
        "echo made > made; mkdir .callgate; mv .callgate x; touch .callgate/settings.toml;"
        "touch .vscode/tasks.json; mv .vscode x; touch ../other/x; touch ~/x; true"
    )
    result = await bench(base, sandbox).run("shell", {"command": command})
    assert result.ok
    assert sorted(os.listdir(base / "ws")) == [".vscode", "made"]
    assert [os.listdir(base / name) for name in ("ws/.vscode", "other")] == [[], []]
    assert sorted(os.listdir(base / "home")) == [".callgate", ".ssh"]


async def test_settings_add_and_hide_places_and_set_limits(base: Path, backends: Any) -> None:
    (base / "home/notes").mkdir()
    (base / "home/notes/a").write_text("private")
    sandbox = Sandbox(
        said(
            base,
            writable=(str(base / "other"),),
            hidden=(str(base / "home/notes"),),
            readable=(str(base / "home/.ssh"),),
            protected=("locked",),
            limits=Limits(open_files=37),
        ),
        backends,
    )
    command = f"cat {base}/home/.ssh/id; echo; ulimit -n; touch {base}/other/x; touch locked; cat {base}/home/notes/a"
    try:
        result = await bench(base, sandbox).run("shell", {"command": command})
    finally:
        sandbox.close()
    assert result.value["stdout"] == "key\n37\n"
    assert (os.listdir(base / "other"), os.listdir(base / "ws")) == (["x"], [])


async def test_extra_roots_of_the_session_are_what_they_were_granted_for(base: Path, sandbox: Sandbox) -> None:
    (base / "readable").mkdir()
    run = bench(base, sandbox)
    run.session.extra_roots = (Root(str(base / "other"), writable=True), Root(str(base / "readable")))
    await run.run("shell", {"command": f"touch {base}/other/x {base}/readable/x"})
    assert (os.listdir(base / "other"), os.listdir(base / "readable")) == (["x"], [])


async def test_a_command_has_the_network_only_if_the_call_asks_for_it(base: Path, sandbox: Sandbox) -> None:
    run = bench(base, sandbox)
    command = "readlink /proc/self/ns/net"
    alone = await run.run("shell", {"command": command})
    shared = await run.run("shell", {"command": command, "network": True})
    ours = os.readlink("/proc/self/ns/net") + "\n"
    assert (alone.value["stdout"] == ours, shared.value["stdout"] == ours) == (False, True)


async def test_temporary_files_go_where_the_command_can_write(
    base: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(base / "other"))
    result = await bench(base, sandbox).run("shell", {"command": "mktemp"})
    assert result.value["stdout"].startswith("/tmp/")


async def test_a_home_in_the_workspace_can_be_neither_read_nor_moved(base: Path, backends: Any) -> None:
    home = base / "ws/deep/home"
    home.mkdir(parents=True)
    (home / "settings.toml").write_text("")
    sandbox = Sandbox(Surroundings(home=str(base / "home"), callgate_home=str(home)), backends)
    try:
        result = await bench(base, sandbox).run(
            "shell", {"command": "ls deep/home; cat deep/home/*; mv deep x; mv deep/home x; ls -d deep/home"}
        )
    finally:
        sandbox.close()
    assert result.value["stdout"] == "deep/home\n"
    assert sorted(os.listdir(home)) == ["run", "settings.toml"]
    assert list(base.rglob("settings.toml")) == [home / "settings.toml"]


# --- what a person is asked ----------------------------------------------------------------------


async def test_the_question_says_what_the_command_runs_in(base: Path, sandbox: Sandbox) -> None:
    human = FakeHuman(True, True)
    run = bench(base, sandbox, mode=Mode.ASK, human=human)
    await run.run("shell", {"command": "true"})
    await run.run("shell", {"command": "true", "network": True})
    assert [(asked.sandbox, asked.why) for asked in human.questions] == [
        ("workspace", "Calls with effect execute need approval by default."),
        ("workspace, with network", "Calls with effect execute need approval by default. It needs the network."),
    ]


async def test_a_session_s_yes_covers_the_network_only_if_it_was_about_it(base: Path, sandbox: Sandbox) -> None:
    always = Answer(decision=Outcome.ALLOW, scope=Scope.SESSION)
    human = FakeHuman(always, always)
    run = bench(base, sandbox, mode=Mode.ASK, human=human)
    for network in (False, False, True, True, False):
        assert (await run.run("shell", {"command": "true", "network": network})).ok
    assert [asked.sandbox for asked in human.questions] == ["workspace", "workspace, with network"]


async def test_a_session_s_no_covers_the_network_too(base: Path, sandbox: Sandbox) -> None:
    human = FakeHuman(Answer(decision=Outcome.DENY, scope=Scope.SESSION))
    run = bench(base, sandbox, mode=Mode.ASK, human=human)
    for network in (False, True):
        result = await run.run("shell", {"command": "true", "network": network})
        assert result.error.error_class == "user_denied"


async def test_a_rule_that_allows_a_command_does_not_give_it_the_network(base: Path, sandbox: Sandbox) -> None:
    rule = Rule(decision=Outcome.ALLOW, tool="shell", command=parse_pattern("true"))
    run = bench(base, sandbox, mode=Mode.ASK, policy=Policy(rules=(rule,)))
    assert (await run.run("shell", {"command": "true"})).ok
    assert (await run.run("shell", {"command": "true", "network": True})).error.reason == "no_confirmer"


async def test_a_remembered_decision_does_not_give_the_network_either(base: Path, sandbox: Sandbox) -> None:
    policy = Policy(per_tool={"shell": Setting(PolicyMode.AUTO)})
    run = bench(base, sandbox, mode=Mode.ASK, policy=policy)
    assert (await run.run("shell", {"command": "true"})).ok
    assert (await run.run("shell", {"command": "true", "network": True})).error.reason == "no_confirmer"
    assert (await run.run("shell", {"command": "true"})).ok


async def test_events_and_the_record_say_what_a_command_ran_in(base: Path, sandbox: Sandbox) -> None:
    run = bench(base, sandbox)
    await run.run("shell", {"command": "true", "network": True})
    (record,) = run.recorder.records
    said_in = run.recorder.one("tool.called").payload["sandbox"], record.sandbox
    assert said_in == ("workspace, with network",) * 2


# --- what cannot be kept -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.READ, Mode.ASK, Mode.WRITE])
@pytest.mark.parametrize("found", [NOT_HERE, NOTHING], ids=["no namespaces", "nothing"])
async def test_what_cannot_be_guaranteed_is_refused_by_name_before_anyone_is_asked(
    base: Path, mode: Mode, found: Any
) -> None:
    sandbox, human = Sandbox(said(base), found), FakeHuman()
    run = bench(base, sandbox, mode=mode, human=human)
    if (mode, found) == (Mode.READ, NOT_HERE):  # Landlock and seccomp are enough for it
        assert (await run.run("shell", {"command": "touch x"})).value["exit_code"] == 1
        sandbox.close()
        return
    result = await run.run("shell", {"command": "touch x"})
    assert result.error.reason == "sandbox_unavailable"
    assert result.error.details["missing"] != []
    assert (human.questions, os.listdir(base / "ws")) == ([], [])
    with pytest.raises(CannotGuarantee):
        run.dispatcher.examine(run.tool_call("shell", {"command": "touch x"}))


async def test_a_link_in_the_place_of_our_own_directory_refuses_the_start(base: Path, sandbox: Sandbox) -> None:
    (base / "ws/.callgate").symlink_to(base / "other")
    result = await bench(base, sandbox).run("shell", {"command": "touch x"})
    assert (result.error.reason, os.listdir(base / "ws")) == ("sandbox_failed", [".callgate"])


async def test_without_a_sandbox_nothing_starts_a_command(base: Path) -> None:
    run = bench(base, Sandbox(OFF))
    run.dispatcher.sites.here._sandbox = None
    result = await run.run("shell", {"command": "touch x"})
    assert (result.error.reason, os.listdir(base / "ws")) == ("sandbox_unavailable", [])


async def test_switched_off_in_so_many_words_a_command_runs_bare_but_not_in_mode_read(
    base: Path,
) -> None:
    sandbox = Sandbox(OFF)
    run = bench(base, sandbox)
    try:
        assert (await run.run("shell", {"command": f"touch {base}/other/x"})).ok
        run.session.mode = Mode.READ
        assert (await run.run("shell", {"command": "true"})).error.reason == "mode_read"
    finally:
        sandbox.close()
    assert os.listdir(base / "other") == ["x"]


# --- a tool that declares to change nothing ------------------------------------------------------


class Looks(Shell):
    """A command that is said to read."""

    definition = msgspec.structs.replace(
        Shell.definition, name="looks", aliases=(), capabilities=frozenset(), side_effects=SideEffects.READ
    )


async def test_the_commands_of_a_tool_that_declares_to_read_cannot_write(base: Path, sandbox: Sandbox) -> None:
    run = Bench(base / "ws", Looks, sandbox=sandbox, mode=Mode.WRITE)
    result = await run.run("looks", {"command": "echo seen; touch made"})
    assert (result.value["stdout"], result.ok) == ("seen\n", False)
    assert os.listdir(base / "ws") == []
    assert run.recorder.records[-1].sandbox == "read"


async def test_a_command_that_wrote_though_its_tool_declares_to_read_is_told_of(base: Path) -> None:
    sandbox = Sandbox(OFF)
    run = Bench(base / "ws", Looks, sandbox=sandbox, mode=Mode.WRITE)
    try:
        assert (await run.run("looks", {"command": "touch made"})).ok
        assert (await run.run("looks", {"command": "true"})).ok
    finally:
        sandbox.close()
    told = [each.payload for each in run.recorder.events if each.type == EFFECT_MISMATCH]
    assert [(each["declared"], each["did"], each["paths"]) for each in told] == [("read", "write", ["made"])]
    assert [record.reason for record in run.recorder.records] == ["effect_mismatch", None]


# --- our own program -----------------------------------------------------------------------------


@pytest.mark.spec("T07")
@pytest.mark.parametrize("profile", [Profile.WORKSPACE, Profile.OPEN])
async def test_a_command_cannot_change_what_the_next_start_of_callgate_runs(
    base: Path, backends: Any, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = base / "ws" / ".venv" / "lib"
    code.mkdir(parents=True)
    (code / "broker.py").write_text("ours")
    monkeypatch.setattr(sandboxes, "_our_code", lambda: (str(base / "ws" / ".venv"), str(base / "ws" / "gone")))
    sandbox = Sandbox(said(base, profile=profile), backends)
    run = bench(base, sandbox)
    try:
        attack = "echo theirs > .venv/lib/broker.py; mv .venv elsewhere; touch .venv/lib/new.pth; touch made; ls"
        result = await run.run("shell", {"command": attack})
    finally:
        sandbox.close()
    assert (result.value["stdout"], os.listdir(code)) == ("made\n", ["broker.py"])
    assert (code / "broker.py").read_text() == "ours"


def test_all_that_we_run_from_is_our_code() -> None:
    ours = sandboxes._our_code()
    used = [sys.modules["msgspec"].__file__, sandboxes.__file__, os.__file__]
    assert all(any(str(file).startswith(place + "/") for place in ours) for file in used)


# --- when the mode changes, and when the broker dies ---------------------------------------------


def test_a_mode_that_became_read_narrows_and_one_that_left_it_does_not_widen(base: Path, sandbox: Sandbox) -> None:
    session = Session(workspace=str(base / "ws"), mode=Mode.WRITE)
    wide = sandbox.enclosure(session, {})
    session.mode = Mode.READ
    narrow = sandbox.enclosure(session, {})
    assert sandbox.launcher(wide, session) is sandbox.launcher(narrow, session)
    session.mode = Mode.ASK
    assert sandbox.launcher(narrow, session) is not sandbox.launcher(wide, session)


async def test_a_broker_that_was_killed_is_started_again_for_the_next_call(base: Path, sandbox: Sandbox) -> None:
    run = bench(base, sandbox)
    assert (await run.run("shell", {"command": "true"})).ok
    first = sandbox.launchers.broker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert (await run.run("shell", {"command": "true"})).ok
    assert sandbox.launchers.broker.pid != first


async def test_a_launcher_is_made_once_for_each_place(base: Path, sandbox: Sandbox) -> None:
    session = Session(workspace=str(base / "ws"), mode=Mode.WRITE)
    enclosure = sandbox.enclosure(session, {})
    assert sandbox.launcher(enclosure, session) is sandbox.launcher(enclosure, session)
    elsewhere = Session(workspace=str(base / "other"), mode=Mode.WRITE)
    assert sandbox.launcher(enclosure, session) is not sandbox.launcher(enclosure, elsewhere)


async def test_closing_takes_the_broker_with_it(base: Path, backends: Any) -> None:
    sandbox = Sandbox(said(base), backends)
    await bench(base, sandbox).run("shell", {"command": "true"})
    pid = sandbox.launchers.broker.pid
    assert pid is not None
    sandbox.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.spec("T07")
async def test_a_result_names_what_was_planted_to_run_later(base: Path, sandbox: Sandbox) -> None:
    run = bench(base, sandbox)
    result = await run.run(
        "shell",
        {"command": "mkdir -p .vscode a; echo > .vscode/tasks.json; echo > .vscode/x; echo > a/.envrc; echo > b"},
    )
    text = result.content[0].text.splitlines()[-1]
    assert text.startswith("[not written: .vscode/tasks.json, .vscode/x, a/.envrc; ")
    assert not (base / "ws" / "a" / ".envrc").exists()
