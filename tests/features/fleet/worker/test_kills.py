"""Workers that are killed under load: no call with effects runs twice, none is left without an end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.features.fleet.worker.deployments import Deployment, Process

NAMES = ("one", "two", "three")
CALLERS = 4


def outcome(result: Any) -> str:
    if result["ok"]:
        return "ok"
    return str(result["error"].get("reason") or result["error"]["class"])


def busy(deployed: Deployment) -> list[str]:
    """The workers that run something."""
    return [each["name"] for each in deployed.workers() if each["calls"]]


def log_of(deployed: Deployment, name: str) -> list[str]:
    log = deployed.directory(name) / "log"
    return log.read_text().splitlines() if log.exists() else []


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

    def kill(name: str) -> None:
        workers[name].kill()
        workers[name].close()
        workers[name] = deployed.worker(token, name)

    def interrupt() -> None:
        """Kill a worker of which it is certain that it runs a call with effects."""
        with ThreadPoolExecutor(1) as pool:
            session = deployed.session("build/app")
            calling = pool.submit(deployed.call, session, "shell", command="echo held >> log; sleep 600")
            (name,) = deployed.until(lambda: [each for each in NAMES if "held" in log_of(deployed, each)])
            kill(name)
            outcomes["held"] = outcome(calling.result(60))

    with ThreadPoolExecutor(CALLERS) as pool:
        working = [pool.submit(work, caller) for caller in range(CALLERS)]
        try:
            for _ in range(kills - 1):
                before = sum(how == "ok" for how in [*outcomes.values()])
                deployed.until(lambda before=before: sum(how == "ok" for how in [*outcomes.values()]) > before + 3)
                kill(random.choice(deployed.until(partial(busy, deployed))))
            interrupt()
        finally:
            ended.set()
        for each in working:
            each.result(60)
    assert outcomes["held"] == "interrupted"
    runs = Counter(line for name in NAMES for line in log_of(deployed, name))
    assert max(runs.values()) == 1  # never twice
    assert {*runs} <= {*outcomes}
    assert [id for id, how in outcomes.items() if how == "ok" and not runs[id]] == []  # none is lost
    assert [id for id, how in outcomes.items() if how in ("no_worker", "worker_lost") and runs[id]] == []
    assert {*outcomes.values()} <= {"ok", "interrupted", "no_worker", "worker_lost"}
    assert {*reads} <= {"ok", "no_worker", "worker_lost"}
    return Counter(outcomes.values())


def test_ten_kills_under_load_run_nothing_twice(deployed: Deployment) -> None:
    ends = kill_under_load(deployed, 10)
    assert ends["ok"] > 30


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sixty_kills_under_load_run_nothing_twice(deployed: Deployment) -> None:
    ends = kill_under_load(deployed, 60)
    assert ends["ok"] > 200
