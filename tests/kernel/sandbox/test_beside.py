"""The keeper's second thread: it waits in the kernel, or is not said to."""

from __future__ import annotations

import threading

from callgate.sandbox.processes import beside
from callgate.sandbox.processes.beside import Beside
from tests.needs import needs

pytestmark = needs("linux")


def test_a_thread_that_waits_is_parked_until_its_work_begins() -> None:
    second = Beside()
    assert second.is_parked()
    name: list[str] = []

    def work() -> int:
        name.append(threading.current_thread().name)
        return 7

    second.begin(work)
    assert second.result() == 7
    assert name and name[0] != threading.current_thread().name


def test_a_thread_in_another_call_is_not_parked() -> None:
    second = Beside()
    second.begin(threading.Event().wait)  # it waits for a lock, not in `read`
    assert not second.is_parked()
    assert beside._system_call(2**22) is None
