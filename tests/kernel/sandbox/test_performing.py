"""Calls that the keeper performs for a command: as the command would, and not where it may not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from callgate.sandbox import profiles
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import Command, choose
from callgate.sandbox.processes import ordering, own_tmp
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from tests.kernel.sandbox.test_escapes import needed
from tests.kernel.sandbox.worlds import PYTHON, World, run
from tests.needs import needs

pytestmark = needs("linux", PYTHON)
SUPERVISED = {"landlock", "seccomp", "supervisor"}
HEAD = """
import ctypes, errno, os, stat, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def syscall(number, *arguments):
    fixed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *fixed)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def attempt(work, *arguments, **more):
    try:
        work(*arguments, **more)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
"""


@pytest.fixture
def world() -> Iterator[World]:
    made = World(os.getuid())
    yield made
    made.remove()


def jail(world: World, **changes: object) -> Jail:
    return msgspec.structs.replace(profiles.workspace(world.places), **changes)


async def do(world: World, script: str, **changes: object) -> str:
    """What a script says that runs in a supervised jail. It must not fail."""
    chosen = await asyncio.to_thread(needed, SUPERVISED)
    plan = choose(jail(world, **changes), chosen)
    assert "supervisor" in plan.backends
    before = world.outside_state()
    argv = (PYTHON, "-I", "-S", "-c", HEAD + textwrap.dedent(script))
    ended, out, err = await run(plan, argv, str(world.workspace), HOME=str(world.home))
    assert (ended.code, err) == (0, "")
    assert world.outside_state() == before
    return out.strip()


async def test_a_program_starts_immediately_after_the_command_wrote_it(world: World) -> None:
    said = await do(
        world,
        """
        program = open("/bin/true", "rb").read()
        def spin():
            while True:
                pass
        def start(name):
            with open(name, "wb") as file:
                file.write(program)
            os.chmod(name, 0o755)
            os.waitpid(os.posix_spawn("./" + name, [name], {}), 0)
        spinners = [os.fork() or spin() for _ in range(4)]  # the keeper is late
        try:
            print({attempt(start, f"p{number}") for number in range(200)})
        finally:
            for each in spinners:
                os.kill(each, 9)
        """,
    )
    assert said == "{'done'}"


async def test_a_hard_link_made_before_does_not_lead_to_a_protected_file(world: World) -> None:
    os.link(world.workspace / ".git" / "config", world.workspace / "alias")
    (world.workspace / ".git" / "hooks" / "old").write_text("#!/bin/sh\n")
    os.link(world.workspace / ".git" / "hooks" / "old", world.workspace / "other")
    assert await do(
        world,
        """
        print(attempt(open, "alias", "a"), attempt(os.truncate, "alias", 0), attempt(os.chmod, "alias", 0o777),
              attempt(open, "other", "r+"), attempt(os.utime, "other"), attempt(os.link, "other", "again"))
        """,
    ) == "EACCES EACCES EPERM EACCES EPERM EPERM"  # fmt: skip


async def test_every_directory_above_a_protected_path_stays_where_it_is(world: World) -> None:
    deep = world.workspace / "a" / "b" / "c"
    deep.mkdir(parents=True)
    place = str(deep / "protected")
    for existing in (False, True):
        if existing:
            (deep / "protected").write_text("as it was")
        found = await do(
            world,
            """
            os.makedirs("full/b/c", exist_ok=True)
            for path in ("a", "a/b", "a/b/c"):
                print(attempt(os.rename, path, "away"), attempt(os.rename, "full", path),
                      syscall and attempt(syscall, 316, -100, path.encode(), -100, b"full", 2))
            print(attempt(open, "a/b/c/protected", "w"), attempt(os.symlink, "x", "a/b/c/protected"),
                  attempt(os.mkdir, "a/b/c/protected"))
            """,
            protected=(place,),
        )
        assert found.splitlines()[:3] == ["EBUSY EBUSY EBUSY"] * 3
        assert found.splitlines()[3] == ("EACCES EACCES EEXIST" if existing else "EACCES EACCES EACCES")


async def test_paths_through_proc_and_dev_mean_the_callers_own_files(world: World) -> None:
    found = await do(
        world,
        """
        import pathlib
        one = os.open("one", os.O_RDWR | os.O_CREAT)
        here = os.open(".", os.O_RDONLY)
        for path in (f"/proc/self/fd/{one}", f"/dev/fd/{one}", f"/proc/thread-self/fd/{one}",
                     f"/proc/{os.getpid()}/fd/{one}", f"/proc/self/task/{os.getpid()}/fd/{one}"):
            with open(path, "a") as file:
                file.write("x")
        print(os.fstat(one).st_size)
        for number, base in enumerate((f"/proc/self/fd/{here}", "/proc/self/cwd", "/proc/thread-self/cwd", "/proc/self/root" + os.getcwd())):
            open(f"{base}/new{number}", "w")
            os.mkdir(f"{base}/directory{number}")
            os.rename(f"{base}/new{number}", f"{base}/moved{number}")
        print(sorted(name for name in os.listdir(here) if name[-1].isdigit()))
        os.symlink("/proc/self/fd", "fds")
        open(f"fds/{one}", "a").write("y")
        print(os.fstat(one).st_size, attempt(os.chmod, f"/dev/fd/{one}", 0o600), oct(os.fstat(one).st_mode))
        """,
    )
    names = [f"directory{n}" for n in range(4)] + [f"moved{n}" for n in range(4)]
    assert found.splitlines() == ["5", str(names), "6 done 0o100600"]


async def test_the_keepers_own_descriptors_and_memory_are_out_of_reach(world: World) -> None:
    found = await do(
        world,
        """
        keeper = os.getppid()
        outcomes = set()
        threads = [pid for pid in range(keeper - 1, keeper + 5) if pid != os.getpid()]
        for pid in threads:
            for flags in (os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC):
                for name in ("mem", "environ", "cmdline", "maps", *(f"fd/{n}" for n in range(12)),
                             *(f"task/{pid}/fd/{n}" for n in range(12)), "cwd/x", "root/var/tmp/x"):
                    outcomes.add(attempt(os.open, f"/proc/{pid}/{name}", flags))
        print(sorted(outcomes))
        print(attempt(os.open, "/proc/1/environ", os.O_RDONLY | os.O_CREAT),
              attempt(os.open, "/proc/self/oom_score_adj", os.O_WRONLY),
              attempt(os.open, "/proc/version", os.O_RDONLY | os.O_CREAT))
        """,
    )
    reached, others = found.splitlines()
    assert set(eval(reached)) <= {"EACCES", "ELOOP", "ENOENT", "EPERM", "ENOTDIR"}  # noqa: S307
    assert others == "EACCES EACCES EACCES"


async def test_links_without_a_target_lead_where_they_say(world: World) -> None:
    assert await do(
        world,
        f"""
        os.symlink("later", "inside"); os.symlink({str(world.outside)!r} + "/new", "outside")
        os.symlink("loop", "loop"); os.symlink(".git/hooks/pre-commit", "hook")
        print(attempt(open, "inside", "w"), os.path.isfile("later"), attempt(open, "outside", "w"), attempt(open, "loop", "w"),
              attempt(open, "hook", "w"), attempt(os.open, "inside", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
              attempt(os.open, "inside", os.O_WRONLY | os.O_NOFOLLOW), attempt(open, "new/", "w"), attempt(os.mkdir, "made/"))
        """,
    ) == "done True EACCES ELOOP EACCES EEXIST ELOOP EISDIR done"  # fmt: skip


async def test_a_file_without_a_name_can_be_given_one(world: World) -> None:
    assert await do(
        world,
        """
        file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
        os.write(file, b"content")
        here = os.open(".", os.O_RDONLY)
        os.link(f"/proc/self/fd/{file}", "named", src_dir_fd=here, follow_symlinks=True)
        print(open("named").read(), oct(os.stat("named").st_mode))
        file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
        print(attempt(os.link, f"/proc/self/fd/{file}", ".git/hooks/pre-commit", src_dir_fd=here, follow_symlinks=True),
              attempt(os.fchmod, file, 0o600), attempt(os.setxattr, file, "user.x", b"y"))
        """,
    ) == "content 0o100640\nEACCES done done"  # fmt: skip


async def test_a_file_outside_does_not_change_through_a_descriptor_that_reads_it(world: World) -> None:
    assert await do(
        world,
        f"""
        file = os.open({str(world.outside / "file")!r}, os.O_RDONLY)
        directory = os.open({str(world.outside)!r}, os.O_RDONLY)
        path = os.open({str(world.outside / "file")!r}, os.O_PATH)
        print(attempt(os.fchmod, file, 0o777), attempt(os.fchown, file, -1, os.getgid()), attempt(os.utime, file),
              attempt(os.setxattr, file, "user.x", b"y"), attempt(os.removexattr, file, "user.hers"),
              attempt(os.chmod, f"/proc/self/fd/{{path}}", 0o777), attempt(os.fchmod, directory, 0o777),
              attempt(os.chmod, "file", 0o777, dir_fd=directory), attempt(os.utime, "/dev/null"), attempt(os.chmod, "/dev/null", 0o600))
        """,
    ) == " ".join(["EPERM"] * 10)  # fmt: skip


async def test_files_get_the_mask_and_the_modes_of_their_creator(world: World) -> None:
    assert await do(
        world,
        """
        def made(name):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o666)); os.mkdir(name + "d", 0o777)
            return oct(os.stat(name).st_mode & 0o7777), oct(os.stat(name + "d").st_mode & 0o7777)
        print(made("a"), flush=True)
        child = os.fork()
        if child == 0:
            os.umask(0o077); print(made("b"), flush=True); os._exit(0)
        os.waitpid(child, 0)
        print(made("c")); os.umask(0); print(made("d"))
        print(attempt(os.chmod, "a", 0o4755), attempt(os.chmod, "a", 0o2755), attempt(os.chmod, "ad", 0o2755), oct(os.stat("ad").st_mode))
        """,
    ) == textwrap.dedent("""\
        ('0o644', '0o755')
        ('0o600', '0o700')
        ('0o644', '0o755')
        ('0o666', '0o777')
        EPERM EPERM done 0o42755""")  # fmt: skip


async def test_twenty_threads_write_and_move_files_at_a_time(world: World) -> None:
    assert await do(
        world,
        """
        failures = []
        def work(number):
            try:
                for count in range(50):
                    with open(f"{number}-{count}.part", "w") as file:
                        file.write(str(number) * 100)
                    os.rename(f"{number}-{count}.part", f"{number}-{count}")
                    os.chmod(f"{number}-{count}", 0o640)
                    if count % 2:
                        os.unlink(f"{number}-{count}")
            except OSError as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        [each.start() for each in threads]; [each.join() for each in threads]
        names = [name for name in os.listdir(".") if "-" in name]
        print(failures, len(names), {open(name).read() == name.split("-")[0] * 100 for name in names})
        """,
    ) == "[] 500 {True}"  # fmt: skip


async def test_a_program_that_would_restrict_itself_learns_that_it_cannot(world: World) -> None:
    """The keeper performs its calls outside of such rules."""
    found = await do(
        world,
        """
        print(attempt(syscall, 444, 0, 0, 1), attempt(syscall, 445, 9, 1, 0, 0), attempt(syscall, 446, 9, 0))
        """,
    )
    assert found == "ENOTSUP ENOTSUP ENOTSUP"


@pytest.mark.parametrize("tries", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_a_path_that_changes_in_memory_wins_no_race(world: World, tries: int) -> None:
    """One thread flips the path between an allowed and a protected name; another opens it."""
    assert await do(
        world,
        f"""
        good, bad = b"x/aaaaaaa\\0", b".git/hook\\0"
        os.mkdir("x")
        path = ctypes.create_string_buffer(b"x/aaaaaaaaaaaaaaaaaaaa", 64)
        stop = False
        def flip():
            while not stop:
                ctypes.memmove(path, b".git/hooks/pre-commit\\0", 22)
                ctypes.memmove(path, b"x/aaaaaaaaaaaaaaaaaaa\\0", 22)
        thread = threading.Thread(target=flip); thread.start()
        opened = 0
        for count in range({tries}):
            number = libc.syscall(257, -100, path, os.O_CREAT | os.O_WRONLY, 0o600)
            if number >= 0:
                opened += 1; os.close(number)
        stop = True; thread.join()
        print(opened > 0, os.listdir(".git/hooks"))
        """,
    ) == "True []"  # fmt: skip


async def test_a_pipe_waits_for_its_other_end_and_delays_nobody(world: World) -> None:
    assert await do(
        world,
        """
        os.mkfifo("pipe")
        got = []
        def write():
            with open("pipe", "w") as pipe:
                pipe.write("through")
        thread = threading.Thread(target=write); thread.start()
        for count in range(20):
            open(f"meanwhile{count}", "w")
        print(thread.is_alive(), open("pipe").read()); thread.join()
        """,
    ) == "True through"  # fmt: skip


async def test_its_temporary_directory_is_private_and_gone_at_the_end(world: World) -> None:
    found = await do(
        world,
        """
        path = os.environ["TMPDIR"]
        os.makedirs(path + "/a/b"); open(path + "/a/b/c", "w"); os.symlink("/etc", path + "/etc"); os.chmod(path + "/a/b", 0)
        print(path, oct(os.stat(path).st_mode & 0o777), attempt(open, "/tmp/direct", "w"), attempt(os.listdir, "/tmp"))
        """,
    )
    path, mode, *outcomes = found.split()
    assert (mode, outcomes) == ("0o700", ["EACCES", "EACCES"])
    assert not Path(path).exists() and Path("/etc/passwd").exists()


async def test_nothing_outlives_the_keeper_or_the_runtime(world: World) -> None:
    chosen = await asyncio.to_thread(needed, SUPERVISED)
    plan = choose(jail(world), chosen)
    for name in ("keeper", "broker"):
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        broker = BrokerProcess(PYTHON)
        script = "sleep 600 & (setsid sleep 601 &) ; echo $$ $PPID; exec sleep 602"
        command = Command(argv=("/bin/sh", "-c", script), cwd=str(world.workspace), env={"PATH": "/usr/bin:/bin"})
        launcher = BrokerLauncher(broker, plan)
        running = await launcher.start(command, lambda stream, data: lines.put_nowait(data))
        leader, keeper = map(int, (await asyncio.wait_for(lines.get(), 30)).split())
        assert broker.pid is not None
        os.kill(keeper if name == "keeper" else broker.pid, signal.SIGKILL)
        if name == "broker":
            running.abandon()
        await asyncio.wait_for(running.wait(), 30)
        async with asyncio.timeout(30):
            while _sleepers(world):
                await asyncio.sleep(0.05)
        broker.close()


def _sleepers(world: World) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(world.workspace):
                found.append(entry.name)
        except OSError:
            continue
    return found


async def test_the_daily_work_of_git_is_done(world: World) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q", "-b", "main", "."], cwd=world.workspace, check=True)
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", f"{world.user}", world.workspace], check=True)
    script = """
        set -e
        g() { git -c user.name=n -c user.email=e "$@"; }
        g add plain; g commit -qm one; g checkout -q -b side; echo more >> plain; g commit -qam two
        g checkout -q main; echo x > other; g add other; g commit -qm three; g merge -q -m merge side
        echo y >> plain; g stash -q; g stash pop -q; g checkout -q plain; g tag v1; g rebase -q HEAD~1
        g reset -q --hard v1; g gc -q; g branch -D side -q 2>/dev/null; g worktree list >/dev/null; g clean -qfd
        g cherry-pick HEAD~1 >/dev/null 2>&1 || g cherry-pick --abort
        git log --oneline | wc -l; git status --porcelain --untracked-files=no; git fsck 2>&1
    """
    chosen = await asyncio.to_thread(needed, SUPERVISED)
    ended, out, err = await run(
        choose(jail(world), chosen), ("/bin/sh", "-c", script), str(world.workspace), HOME=str(world.home)
    )
    assert (ended.code, err) == (0, "")
    assert out.split("\n")[0] == "4"


async def test_a_tree_of_any_depth_in_its_temporary_directory_is_removed(world: World) -> None:
    found = await do(
        world,
        """
        top = os.environ["TMPDIR"]
        print(top)
        def deep(name, levels):
            os.chdir(top); os.mkdir(name); os.chdir(name)
            for level in range(levels):
                os.mkdir("d"); os.chdir("d")
            here = os.getcwd(); os.chdir(top); return here
        longest = deep("a", 1800)
        deep("b", 1800)
        os.rename("b", longest + "/b")
        os.mkdir("closed"); os.mkdir("closed/in"); os.chmod("closed", 0)
        """,
    )
    assert not Path(found).exists() and not Path(found).parent.exists()


async def test_a_command_that_does_not_start_leaves_no_directory(world: World) -> None:
    plan = choose(jail(world), await asyncio.to_thread(needed, SUPERVISED))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/var/tmp") as parent:
        patch.setattr(ordering, "_TMP", parent)
        with pytest.raises(FileNotFoundError):
            await run(plan, ("/nonexistent",), str(world.workspace))
        assert os.listdir(parent) == []


async def test_a_directory_of_a_killed_keeper_is_removed_by_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("callgate-tmp-old", "callgate-tmp-new"):
        (tmp_path / name / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(own_tmp, "_is_old", lambda facts: facts.st_ino == (tmp_path / "callgate-tmp-old").stat().st_ino)
    made = own_tmp.OwnTmp(str(tmp_path))
    own_tmp.OwnTmp(str(tmp_path)).remove()
    assert Path(made.path).is_dir() and (tmp_path / "callgate-tmp-new").is_dir()
    assert not (tmp_path / "callgate-tmp-old").exists()
    made.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["callgate-tmp-new"]


async def test_shared_memory_is_the_commands_own(world: World) -> None:
    assert await do(
        world,
        """
        import _posixshmem, multiprocessing
        made = _posixshmem.shm_open("/callgate-test", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
        os.write(made, b"content")
        print(os.read(_posixshmem.shm_open("/callgate-test", os.O_RDWR, mode=0), 7), multiprocessing.Lock().acquire())
        print(attempt(os.mkdir, "/dev/shm/../callgate"), os.path.exists("/dev/shm/callgate-test"), attempt(os.listdir, "/dev/shm"))
        """,
    ) == "b'content' True\nEACCES False EACCES"  # fmt: skip
    assert not Path("/dev/shm/callgate-test").exists()  # noqa: S108


TERMINAL = """
import errno, os
try: os.open("/dev/tty", os.O_RDWR)
except OSError as error: print("outcome", errno.errorcode[error.errno])
"""


async def test_the_keepers_terminal_is_not_opened_for_a_command(world: World) -> None:
    """`callgate sandbox` has the user's terminal, and so has its keeper."""
    done = await asyncio.to_thread(
        subprocess.run,
        [
            "script",
            "-qec",
            f"{sys.executable} -m tests.environments full {sys.executable} -m callgate sandbox --workspace {world.workspace} -- {PYTHON} -c '{TERMINAL}'",
            "/dev/null",
        ],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "CALLGATE_HOME": str(world.callgate_home), "HOME": str(world.home)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "outcome ENXIO" in done.stdout, done.stdout
