"""Servers that start, and stop, while the database is away."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import postgres
from tests.features.fleet.servers.clusters import LIMIT_S, Cluster
from tests.shared_stores import SECRETS


async def test_a_server_that_starts_without_the_database_says_503_to_who_may_be_let_in() -> None:
    base = Path(tempfile.mkdtemp(prefix="cg"))
    with postgres.running() as database:
        cluster = Cluster(base, database.location())
        try:
            shared = await cluster.shared_token(cluster.start(), cluster.start())
            await asyncio.to_thread(database.stop)
            b = await asyncio.to_thread(cluster.start)
            away = await b.client(shared).http.get("/v1/sessions")
            assert (away.status_code, away.json()["error"]["reason"]) == (503, "not_ready"), away.text
            assert "retry-after" in away.headers
            link = await b.client(None).http.get("/login?code=x.y")
            assert link.status_code == 503
            assert (await b.client(None).http.get("/v1/sessions")).status_code == 401, "nothing was shown"
            await asyncio.to_thread(database.start)
            async with asyncio.timeout(LIMIT_S):
                while (found := await b.client(shared).http.get("/v1/sessions")).status_code != 200:
                    assert found.status_code == 503
                    await asyncio.sleep(0.1)
            assert (await b.client("wrong").http.get("/v1/sessions")).status_code == 401
        finally:
            await cluster.close()
            shutil.rmtree(base, ignore_errors=True)


def test_a_server_without_the_driver_of_the_database_does_not_start(tmp_path: Path) -> None:
    home, blocked = tmp_path / "h", tmp_path / "blocked" / "psycopg"
    home.mkdir(mode=0o700)
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text('raise ImportError("not installed")')
    (home / "settings.toml").write_text(f'[store]\nurl = "postgresql:///x"\n{SECRETS}')
    ran = subprocess.run(
        [sys.executable, "-m", "callgate", "serve", "--no-http", "--workspace", str(tmp_path / "blocked")],
        env={**os.environ, "CALLGATE_HOME": str(home), "PYTHONPATH": str(tmp_path / "blocked")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 1 and "callgate[postgres]" in ran.stderr.splitlines()[-2], ran.stderr
