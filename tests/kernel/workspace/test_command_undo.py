"""Undo of commands: random sequences of real commands return to the same tree, on every backend."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from callgate.core.errors import ToolError, ToolExecutionError
from callgate.core.local import preimages
from callgate.core.local.preimage_store import Store
from callgate.core.local.preimages import Recorder
from callgate.sandbox import meters
from callgate.workspace.undo.command_changes import HASHED
from callgate.workspace.undo.history import Bounds, CallHistory
from callgate.workspace.undo.open_commands import is_in_use
from callgate.workspace.undo.planning import plan
from callgate.workspace.undo.preimage_logs import read
from callgate.workspace.undo.reverting import Reverter
from tests.kernel.workspace.command_worlds import BACKENDS, EARLIER, CommandWorld, plant, script
from tests.needs import needs

pytestmark = needs("linux", "git")
FIRST_SEED = 1_000_000
"""The seeds of the long test were not used while the code was written."""


@pytest.fixture(params=sorted(BACKENDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandWorld]:
    made = CommandWorld(tmp_path, request.param)
    if made.problems:
        pytest.skip("; ".join(made.problems))
    yield made
    made.close()


async def sequence(world: CommandWorld, seed: int) -> None:
    """Run three calls, undo them, undo the undo, and undo again: one by one, or at once."""
    choose = random.Random(seed)
    plant(world.root, choose)
    states = [world.seen()]
    for number in range(3):
        text = script(choose, choose.randrange(1, 7))
        await world.run(text, f"c{number}")
        states.append(world.seen())
    if choose.random() < 0.5:
        for number in (2, 1, 0):
            if world.history.of_call(f"c{number}").changes:
                await world.undo(f"c{number}", by=f"u{number}")
            assert world.seen() == states[number], f"seed {seed}, call {number}"
        if world.history.of_call("u0").changes:
            await world.undo("u0", by="r0")
        assert world.seen() == states[1], f"seed {seed}, undo of the undo"
        return
    if not world.history.of_session("s").changes:
        return
    await world.undo(by="u", session="s", to_turn=EARLIER)
    assert world.seen() == states[0], f"seed {seed}, all at once"
    if world.history.of_call("u").changes:
        await world.undo("u", by="r")
    assert world.seen() == states[3], f"seed {seed}, undo of the undo"


@pytest.mark.parametrize("seed", range(6))
async def test_a_random_sequence_of_commands_is_undone_exactly(world: CommandWorld, seed: int) -> None:
    await sequence(world, seed)


SET = "python3 -c \"import os; os.setxattr('{}', 'user.k', b'1')\""
UNSET = "python3 -c \"import os; os.removexattr('{}', 'user.k')\""


@pytest.mark.parametrize(
    "scripts",
    [
        ("echo more >> d/x", "chmod 555 d/hard"),
        ("echo more >> d/x", "chmod 555 d/hard; rm d/hard"),
        ("ln a c", "chmod 600 c"),
        ("ln a c", "chmod 600 c; rm c"),
        ("ln a c", "echo more >> c; rm c"),
        ("ln a c", SET.format("c")),
        ("ln a c", f"{SET.format('c')}; rm c"),
        (f"{SET.format('d/x')}; rm d/x",),
        (f"{SET.format('d/x')}; echo more >> d/x; chmod 555 d/x; rm d/x",),
        (SET.format("d/x"), "cp d/x new; mv new d/x"),
        (SET.format("d/x"), f"{UNSET.format('d/hard')}; rm d/x"),
    ],
)
async def test_a_change_through_one_of_two_names_is_undone(world: CommandWorld, scripts: tuple[str, ...]) -> None:
    plant(world.root, random.Random(1))
    before = world.seen()
    for number, text in enumerate(scripts):
        await world.run(text, f"c{number}")
    after = world.seen()
    await world.undo(by="u", session="s", to_turn=EARLIER)
    assert world.seen() == before
    await world.undo("u", by="r")
    assert world.seen() == after
    await world.undo("r", by="u2")
    assert world.seen() == before


async def test_a_mode_that_another_program_set_since_stays(world: CommandWorld) -> None:
    plant(world.root, random.Random(1))
    before = (world.root / "d/x").read_bytes()
    await world.run("echo more >> d/x", "c0")
    await world.run("chmod 555 d/hard", "c1")
    (world.root / "d/x").chmod(0o600)
    await world.undo(session="s", to_turn=EARLIER)
    assert (world.root / "d/x").read_bytes() == before
    assert (world.root / "d/x").stat().st_mode & 0o777 == 0o600


@pytest.mark.soak
@pytest.mark.parametrize("block", range(100))
async def test_a_thousand_random_sequences_are_undone_exactly(
    block: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    backend = sorted(BACKENDS)[block % 2]
    for number in range(10):
        base = tmp_path / str(number)
        base.mkdir()
        world = CommandWorld(base, backend)
        if world.problems:
            pytest.skip("; ".join(world.problems))
        try:
            await sequence(world, FIRST_SEED + block * 10 + number)
        finally:
            world.close()


SCRIPT = """
    echo more >> a; rm b; mv d e; sed -i s/x/y/ e/x; ln a f; chmod 600 a; mkdir g; mv big g/big
    ln -sfn elsewhere link; rm -r sub; echo new > sub; rm n/pipe
"""


async def test_a_crash_before_any_step_of_an_undo_loses_nothing(world: CommandWorld) -> None:
    plant(world.root, random.Random(1))
    before = world.seen()
    await world.run(SCRIPT, "c")
    after = world.seen()
    for number in count(1):
        is_killed = killed_undo(world, f"k{number}", number)
        world.history.settle_unfinished()
        if world.history.of_call(f"k{number}").changes:
            await world.undo(f"k{number}", by=f"r{number}")
        assert world.seen() == (after if is_killed or number > 1 else before), f"step {number}"
        if not is_killed:
            break
    assert number > 20
    await world.undo("c")
    assert world.seen() == before


def killed_undo(world: CommandWorld, by: str, step: int) -> bool:
    """Undo the call `c` in a child that dies after it noted a step, and before it takes the step.
    Returns whether it died."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    written = 0
    append = Recorder._append

    def dying(self: Recorder, lines: list[tuple[bytes, ...]]) -> None:
        nonlocal written
        append(self, lines)
        written += 1
        if written > step:
            os._exit(9)

    try:
        Recorder._append = dying  # type: ignore[method-assign]
        files = world.files(by)
        steps = plan(files, world.history, world.history.of_call("c").changes).steps
        assert isinstance(files.changes, CallHistory)
        with files.changes.recording(["/"]) as recorder:
            Reverter(files, world.history, steps, recorder).run()
    except BaseException:
        os._exit(1)
    os._exit(0)


async def test_a_command_that_is_killed_with_its_keeper_is_undone(world: CommandWorld) -> None:
    plant(world.root, random.Random(1))
    before = world.seen()
    origin = world.origin("c")
    directory = world.history.begin_command(origin)
    lines = asyncio.Queue[None]()
    script = "for i in $(seq 100000); do mv a b; sed -i s/1/2/ b; mv b a; echo $i; echo $i >> d/x; done"
    running = await world.start(script, directory, lambda stream, data: lines.put_nowait(None))
    for _ in range(3):
        await lines.get()
    assert world.broker.pid is not None
    for pid in (*meters.descendants(world.broker.pid), world.broker.pid):
        with suppress(ProcessLookupError):  # a `mv` may have ended since
            os.kill(pid, signal.SIGKILL)
    await running.wait()
    world.history.settle_unfinished()
    assert world.history.of_call("c").changes == []  # its owner lives
    world.history.release(directory)
    while is_in_use(directory):
        await asyncio.sleep(0)
    world.history.settle_unfinished()
    assert world.seen() != before
    await world.undo("c")
    assert world.seen() == before


RACE = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
path = ctypes.create_string_buffer(b"one")
def swap():
    while True:
        path.value = b"two"
        path.value = b"one"
threading.Thread(target=swap, daemon=True).start()
for number in range({tries}):
    descriptor = libc.open(path, os.O_WRONLY | os.O_TRUNC)
    if descriptor >= 0:
        libc.write(descriptor, b"x", 1)
        libc.close(descriptor)
    libc.unlink(path)
    libc.link(b"spare", path)
    libc.rename(b"gone", path)
os._exit(0)
"""


@pytest.mark.parametrize("tries", [100, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_a_path_that_is_exchanged_during_a_call_hides_no_change(world: CommandWorld, tries: int) -> None:
    for name in ("one", "two", "spare"):
        (world.root / name).write_text(f"content of {name}")
    before = world.seen()
    await world.run(f"python3 -c '{RACE.format(tries=tries)}'")
    assert world.seen() != before
    changes = world.history.of_call("c1").changes
    assert {"one", "two"} <= {os.path.basename(each.real) for each in changes}
    await world.undo()
    assert world.seen() == before


async def test_a_removed_file_that_exceeds_the_memory_is_restored(world: CommandWorld) -> None:
    large = world.root / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    await world.run("rm large")
    assert not large.exists()
    await world.undo()
    assert large.stat().st_size == 1 << 40


def test_a_file_that_grows_while_it_is_copied_does_not_exceed_the_bound(tmp_path: Path) -> None:
    store = Store(str(tmp_path), 1000, 1000)
    with open("/proc/self/status", "rb") as file:  # its size is 0
        name = store.copy(file.fileno())
    store.close()
    assert (tmp_path / name.decode().partition(":")[0]).read_bytes() == b""


async def test_a_file_above_the_bound_is_named(world: CommandWorld) -> None:
    world.history.bounds = Bounds(max_file=1000)
    (world.root / "large").write_bytes(b"x" * 2000)
    (world.root / "gone").write_bytes(b"x" * 2000)
    _, found, _ = await world.run("echo more >> large; echo new > small; rm gone")
    assert found.unkept == [(str(world.root / "large"), "larger than 1000 bytes")]
    with pytest.raises(ToolExecutionError) as refused:
        await world.undo()
    assert (refused.value.reason, (refused.value.details or {})["files"]) == ("not_kept", ["large"])
    assert (world.root / "small").exists()


async def test_a_write_that_was_refused_prevents_no_undo(world: CommandWorld) -> None:
    for name in ("a", "b"):
        (world.root / name).write_text("old")
    before = world.seen()
    _, found, said = await world.run("chmod 000 a b; echo new > a; truncate -s 0 b")
    assert said.count("Permission denied") == 2
    assert found.unkept == []
    await world.undo()
    assert world.seen() == before


async def test_a_file_that_was_opened_and_not_changed_is_no_change(world: CommandWorld) -> None:
    (world.root / "a").write_text("a")
    _, found, _ = await world.run("exec 5<>a; exec 5<&-; touch a; mkdir d; rmdir d; echo > b; rm b")
    assert found.changes == []
    assert not os.path.exists(world.history.stored_files)


async def test_a_refused_write_to_a_hidden_file_does_not_prevent_an_undo(tmp_path: Path) -> None:
    world = CommandWorld(tmp_path, "namespaces", hidden=("secret",))
    if world.problems:
        pytest.skip("; ".join(world.problems))
    (world.root / "secret").write_text("secret")
    before = world.seen()
    try:
        _, found, _ = await world.run("echo > secret; echo >> secret; truncate -s 0 secret; mkdir d")
        assert ([os.path.basename(each.real) for each in found.changes], found.unkept) == (["d"], [])
        await world.undo()
    finally:
        world.close()
    assert world.seen() == before


def test_a_log_at_its_bound_refuses_changes_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preimages, "LONGEST_LOG", 100)
    with open(tmp_path / "log", "ab", buffering=0) as log:
        recorder = Recorder([b"/ws"], log.fileno(), None)
        recorder.begin()
        noted = [recorder.creation(b"/ws/" + b"a" * 40), recorder.creation(b"/ws/" + b"b" * 40)]
        with pytest.raises(OSError, match="quota"):
            recorder.creation(b"/ws/c")
        noted[1].__exit__(OSError, None, None)
        recorder.end()
    lines, has_begun, has_ended = read((tmp_path / "log").read_bytes())
    assert (len(lines), has_begun, has_ended) == (1, True, True)


async def test_no_set_uid_bit_is_restored_to_a_content_that_was_not_compared(world: CommandWorld) -> None:
    program = world.root / "program"
    with program.open("wb") as file:
        file.truncate(HASHED + 1)
    program.chmod(0o4755)
    await world.run("chmod 700 program", "c1")
    forge = "cp -p program p; printf x | dd conv=notrunc of=program; touch -r p program; rm p"
    await world.run(forge, "c2")
    assert program.read_bytes()[:1] == b"x"
    await world.undo("c1")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


ENDS_FIRST = """
import os, threading
os.mkdir("d")
threading.Thread(target=os.open, args=("leased", os.O_WRONLY | os.O_TRUNC), daemon=True).start()
while not os.path.exists("asked"):
    pass
os._exit(0)
"""


async def test_a_delayed_call_of_an_ended_command_is_recorded_or_not_performed(world: CommandWorld) -> None:
    leased = world.root / "leased"
    leased.write_text("content")
    with leased.open("r+b") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            pytest.skip("this file system has no leases")
        earlier = signal.signal(signal.SIGIO, lambda *_: (world.root / "asked").touch())
        try:
            await world.run(f"exec python3 -c '{ENDS_FIRST}'")
        finally:
            signal.signal(signal.SIGIO, earlier)
    assert world.broker.pid is not None
    while meters.descendants(world.broker.pid):
        await asyncio.sleep(0)
    assert leased.read_text() == "content"


async def test_nothing_moves_between_recorded_and_other_directories(world: CommandWorld) -> None:
    (world.root / "a").write_text("a")
    before = world.seen()
    ended, _, said = await world.run(
        "python3 -c \"import os; os.rename('a', os.environ.get('TMPDIR', '/tmp') + '/a')\""
    )
    assert ended.code == 1
    assert "Errno 18" in said
    await world.run('mv a "${TMPDIR:-/tmp}/a"; mkdir d', "c2")
    await world.undo("c2")
    assert world.seen() == before


async def test_what_changed_since_is_a_conflict_and_nothing_is_touched(world: CommandWorld) -> None:
    plant(world.root, random.Random(1))
    await world.run("echo more >> a; mv d e; rm b")
    (world.root / "a").write_text("by hand")
    seen = world.seen()
    with pytest.raises(ToolExecutionError) as refused:
        await world.undo()
    assert refused.value.reason == "changed_since"
    assert world.seen() == seen


async def test_files_of_others_in_a_created_directory_stay(world: CommandWorld) -> None:
    await world.run("mkdir d; echo 1 > d/a")
    (world.root / "d" / "mine").write_text("mine")
    said = await world.undo()
    assert said.splitlines() == ["Removed 'd/a'", "Left 'd': it is not empty"]
    assert (world.root / "d" / "mine").read_text() == "mine"


async def test_an_undo_moves_no_file_of_another_command_to_a_protected_path(world: CommandWorld) -> None:
    (world.root / "d" / ".claude").mkdir(parents=True)
    await world.run("mv d/.claude d/e", "c1")
    await world.run("echo {} > d/e/settings.json; mkdir d/e/.claude", "c2")
    seen = world.seen()
    with pytest.raises(ToolError, match=r"d/\.claude/settings\.json' is protected"):
        await world.undo("c1")
    assert world.seen() == seen
    await world.undo(session="s", to_turn=EARLIER)
    assert sorted(world.seen()) == [b"d", b"d/.claude"]


async def test_changes_of_file_tools_and_commands_are_undone_together(world: CommandWorld) -> None:
    plant(world.root, random.Random(1))
    before = world.seen()
    world.files("t1", "write_file").write("d/y", "by a tool")
    await world.run("mv d e; sed -i s/tool/command/ e/y; cp a e/a", "c1")
    world.files("t2", "write_file").write("e/y", "by a tool again")
    world.files("t3", "write_file").write("e/new/file", "new")
    await world.run("rm -rf e/new; mv e d2", "c2")
    await world.undo(session="s", to_turn=EARLIER)
    assert world.seen() == before
