"""File systems whose locks exclude nobody: refused at the start, in words that name the cause."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.core.local.disk import ensure_excludes, ensure_locks, nfs_problem
from callgate.core.stores import StoreUnlocked
from tests.needs import needs

GRANT_ALL = """
int flock(int descriptor, int operation) { return 0; }
"""
GRANT_RECORDS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
int fcntl64(int descriptor, int command, ...) {
    static int (*real)(int, int, ...);
    va_list given;
    va_start(given, command);
    void *argument = va_arg(given, void *);
    va_end(given);
    if (command == F_OFD_SETLK || command == F_SETLK) return 0;
    if (!real) real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
    return real(descriptor, command, argument);
}
int fcntl(int descriptor, int command, ...) {
    va_list given;
    va_start(given, command);
    void *argument = va_arg(given, void *);
    va_end(given);
    return fcntl64(descriptor, command, argument);
}
"""
NO_LOCKS = """
#include <errno.h>
int flock(int descriptor, int operation) { errno = ENOLCK; return -1; }
"""


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cg") as made:
        base = Path(made)
        (base / "ws").mkdir()
        yield base


def callgate(base: Path, library: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a system whose locks behave as a C library says."""
    source, preload = base / "locks.c", base / "locks.so"
    source.write_text(library)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", preload, source, "-ldl"], check=True, timeout=60)
    env = {**os.environ, "CALLGATE_HOME": str(base / "h"), "LD_PRELOAD": str(preload)}
    words = (sys.executable, "-m", "callgate", *words)
    return subprocess.run(words, cwd=base / "ws", env=env, capture_output=True, text=True, timeout=60)


def test_locks_of_this_machine_exclude_one_another(tmp_path: Path) -> None:
    ensure_locks(str(tmp_path))
    with open(tmp_path / "lock", "w+") as file:
        with pytest.raises(StoreUnlocked):
            ensure_excludes(file.fileno(), str(tmp_path / "lock"))  # it has no lock yet
        fcntl.flock(file, fcntl.LOCK_EX)
        ensure_excludes(file.fileno(), str(tmp_path / "lock"))
        ensure_locks(str(tmp_path))
    ensure_locks(str(tmp_path / "nowhere"))


@needs("cc")
@pytest.mark.parametrize(
    ("library", "why"),
    [(GRANT_ALL, "granted the same lock twice"), (GRANT_RECORDS, "granted the same lock twice"), (NO_LOCKS, "locks")],
    ids=["flock", "records", "none"],
)
def test_an_instance_does_not_start_where_locks_exclude_nobody(base: Path, library: str, why: str) -> None:
    ran = callgate(base, library, "serve", "--no-http")
    assert ran.returncode != 0
    assert "File locks do not work in " in ran.stderr and why in ran.stderr
    assert "local file system" in ran.stderr
    assert "another instance" not in ran.stderr


@needs("cc")
@pytest.mark.parametrize("library", [GRANT_ALL, GRANT_RECORDS, NO_LOCKS], ids=["flock", "records", "none"])
def test_a_call_with_effects_does_not_run_where_locks_exclude_nobody(base: Path, library: str) -> None:
    (base / "h").mkdir(mode=0o700)
    words = ["call", "write_file", "--yes", "--args", '{"path": "a.txt", "content": "x"}']
    ran = callgate(base, library, *words)
    assert ran.returncode != 0, ran.stdout
    assert "File locks do not work in " in ran.stdout + ran.stderr
    assert not (base / "ws" / "a.txt").exists()


@pytest.mark.parametrize("option", ["nolock", "local_lock=all", "local_lock=flock", "local_lock=posix"])
def test_a_network_file_system_with_local_locks_is_recognised(option: str) -> None:
    line = "36 35 0:52 / /home rw,relatime shared:1 - {} server:/home rw,vers=3,{},addr=192.0.2.1\n"
    other = "22 27 0:5 / /dev rw - devtmpfs devtmpfs rw,size=4k\n"
    problem = nfs_problem(other + line.format("nfs", option), "0:52")
    assert problem is not None and option in problem
    assert nfs_problem(other + line.format("nfs4", option), "0:5") is None
    assert nfs_problem(line.format("nfs4", "local_lock=none"), "0:52") is None
    assert nfs_problem(line.format("ext4", option), "0:52") is None
    assert nfs_problem("", "0:52") is None


def test_a_second_instance_is_still_told_of_the_first(base: Path) -> None:
    env = {**os.environ, "CALLGATE_HOME": str(base / "h")}
    words = [sys.executable, "-m", "callgate", "serve", "--no-http"]
    with subprocess.Popen(words, cwd=base / "ws", env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        assert first.stdout is not None
        assert b"listening on" in first.stdout.readline()
        second = subprocess.run(words, cwd=base / "ws", env=env, capture_output=True, text=True, timeout=60)
        first.terminate()
        first.wait(60)
    assert "another instance serves" in second.stderr
