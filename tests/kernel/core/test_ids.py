"""Identifiers: unique, ordered, and not confused with other people's."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from callgate.core import ids
from callgate.core.ids import call_id, is_call_id, ulid


@pytest.mark.spec("S4-78")
def test_ids_are_unique_and_sort_in_the_order_of_their_making() -> None:
    made = [ulid() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)
    assert {len(each) for each in made} == {26}


def test_threads_may_make_ids_at_the_same_time() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            made = [*threads.map(lambda _: [ulid() for _ in range(20_000)], range(4))]
    finally:
        sys.setswitchinterval(interval)
    assert len({id for each in made for id in each}) == 80_000
    assert all(each == sorted(each) for each in made)


def test_a_forked_process_makes_other_ids() -> None:
    read, write = os.pipe()
    before = ulid()
    child = os.fork()
    if child == 0:
        os.write(write, ulid().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 26).decode()
    os.close(read)
    os.close(write)
    assert theirs[10:20] != before[10:20]


def test_processes_make_ids_with_different_ends() -> None:
    program = "from callgate.core.ids import session_id; print(session_id())"
    ends = {subprocess.check_output([sys.executable, "-c", program], text=True).strip()[-6:] for _ in range(3)}
    assert len(ends) == 3


def test_ids_stay_ordered_when_the_counter_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_COUNTER_BITS", 11)
    source = ids._ulids()
    made = [next(source) for _ in range(5_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)


def test_our_own_ids_are_told_from_others() -> None:
    assert is_call_id(call_id())
    for other in ["", "tu_", "tu_01HZ_a", "toolu_01", "tu_" + "I" * 26, call_id() + "\n"]:
        assert not is_call_id(other)
