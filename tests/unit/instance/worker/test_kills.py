"""Workers that are killed under load: no call with effects runs twice, none is left without an end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.unit.instance.worker.deployments import Deployment, Process

NAMES = ("one", "two", "three")
CALLERS = 4


def outcome(result: Any) -> str:
    if result["ok"]:
        return "ok"
    return str(result["error"].get("reason") or result["error"]["class"])


def is_busy(deployed: Deployment, name: str) -> bool:
    return any(each["calls"] for each in deployed.workers() if each["name"] == name)


def kill_under_load(deployed: Deployment, kills: int) -> Counter[str]:
    """Calls with effects and reads from several clients while workers die: how the calls ended."""
    token, ended = deployed.token("build"), threading.Event()
    workers: dict[str, Process] = {name: deployed.worker(token, name) for name in NAMES}
    outcomes: dict[str, str] = {}
    reads: Counter[str] = Counter()

    def work(caller: int) -> None:
        number = 0
        while not ended.is_set():
            session, number = deployed.session("build/app"), number + 1
            for step in range(5):
                id = f"{caller}-{number}-{step}"
                outcomes[id] = outcome(deployed.call(session, "shell", command=f"echo {id} >> log; sleep 0.05"))
                reads[outcome(deployed.call(session, "list_dir"))] += 1

    with ThreadPoolExecutor(CALLERS) as pool:
        working = [pool.submit(work, caller) for caller in range(CALLERS)]
        try:
            for _ in range(kills):
                name = random.choice(NAMES)
                deployed.until(partial(is_busy, deployed, name), 5)
                workers[name].kill()
                workers[name].close()
                workers[name] = deployed.worker(token, name)
        finally:
            ended.set()
        for each in working:
            each.result(60)
    logs = [deployed.directory(name) / "log" for name in NAMES]
    runs = Counter(line for log in logs if log.exists() for line in log.read_text().splitlines())
    assert max(runs.values()) == 1  # never twice
    assert {*runs} <= {*outcomes}
    assert [id for id, how in outcomes.items() if how == "ok" and not runs[id]] == []  # none is lost
    assert [id for id, how in outcomes.items() if how in ("no_worker", "worker_lost") and runs[id]] == []
    assert {*outcomes.values()} <= {"ok", "interrupted", "no_worker", "worker_lost"}
    assert {*reads} <= {"ok", "no_worker", "worker_lost"}
    return Counter(outcomes.values())


def test_three_kills_under_load_run_nothing_twice(deployed: Deployment) -> None:
    ends = kill_under_load(deployed, 3)
    assert ends["ok"] > 10 and ends["interrupted"] > 0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sixty_kills_under_load_run_nothing_twice(deployed: Deployment) -> None:
    ends = kill_under_load(deployed, 60)
    assert ends["ok"] > 200 and ends["interrupted"] > 10
