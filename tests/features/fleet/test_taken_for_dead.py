"""A server that was silent for so long that others took its sessions ends, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from tests import postgres
from tests.shared_stores import SECRETS


def test_a_server_that_others_took_for_dead_ends_and_says_why(database: postgres.Cluster, tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    home.mkdir(mode=0o700)
    workspace.mkdir()
    (home / "settings.toml").write_text(f'[store]\nurl = "{database.url}"\nschema = "dead"\n{SECRETS}')
    command = [sys.executable, "-m", "callgate", "serve", "--no-http", "--workspace", str(workspace)]
    server = subprocess.Popen(
        command, env={**os.environ, "CALLGATE_HOME": str(home)}, stderr=subprocess.PIPE, text=True
    )
    try:
        with psycopg.connect(database.url, autocommit=True) as db:
            _take_for_dead(db, server)
        _, said = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    assert server.returncode != 0
    assert "consider it dead" in said


def _take_for_dead(db: psycopg.Connection[tuple[object, ...]], server: subprocess.Popen[str]) -> None:
    """As others would while it is silent; whichever owners it has come with by then."""
    until = time.monotonic() + 60
    while server.poll() is None:
        assert time.monotonic() < until, "the server does not end"
        if db.execute("select to_regclass('dead.owners') is not null").fetchone() == (True,):
            db.execute("update dead.owners set dead = true where not dead")
        time.sleep(0.1)
