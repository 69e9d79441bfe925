"""A real PgBouncer in transaction mode, before a cluster of the tests."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.needs import PGBOUNCER
from tests.postgres import Cluster

_SETTINGS = """
[databases]
postgres = host={host} port={port} dbname=postgres user=callgate
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = 10
max_client_conn = 200
server_login_retry = 0.2
ignore_startup_parameters = extra_float_digits
"""


def program(directory: Path) -> str:
    """The program, where the user that owns this directory can start it."""
    assert PGBOUNCER is not None
    if "/.tools/" not in PGBOUNCER:
        return PGBOUNCER
    copy = shutil.copytree(os.path.dirname(PGBOUNCER), directory / "program")
    return str(copy / "pgbouncer")


@contextlib.contextmanager
def pooling(cluster: Cluster) -> Iterator[str]:
    """The address of the pooler."""
    directory = Path(tempfile.mkdtemp(prefix="callgate-bouncer-", dir="/tmp"))
    user = "nobody" if os.getuid() == 0 else None
    if user is not None:  # it refuses root
        shutil.chown(directory, user)
    settings = directory / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(host=cluster.directory, port=cluster.port, directory=directory))
    log = (directory / "log").open("ab")
    process = subprocess.Popen(
        [program(directory), str(settings)],
        stdout=log,
        stderr=log,
        cwd="/",
        user=user,
        group=None if user is None else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user is None else [],
    )
    log.close()
    url = f"postgresql://callgate@/postgres?host={directory}&port=6432"
    try:
        _wait_until_ready(url, process, directory / "log")
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < until and process.poll() is None, log.read_text()[-2_000:]
            time.sleep(0.01)
