"""The benchmark command runs and prints what it promises; how fast anything is, is no test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest

from benchmarks import function_calls
from benchmarks.cases import CASES
from benchmarks.contest import Effort, Failed, Measured, hold
from benchmarks.contestants import BARE, CALLS, Contestant, idle

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TINY = Effort(rounds=2, batch=2)
LIAR = "tests.benchmarks.always_42"


def test_the_function_calls_of_one_call_are_listed_in_their_order(capsys):
    function_calls.main()
    *listed, total = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in listed]
    stages = ["ToolDispatcher.run", "Plans.find", "ArgumentSchema.check", "decide", "execute", "add"]
    assert [name for name in names if name in stages] == stages
    assert total.startswith(f"{len(listed)} function calls")


def test_a_quick_run_prints_a_table_and_then_one_json_line():
    ended = subprocess.run(
        [sys.executable, "benchmarks/run.py", "--quick", "--rounds", "2", "--only", "bare", "--only", "gate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    *table, last = ended.stdout.splitlines()
    rows = [line.split(" | ")[0] for line in table if line.startswith("| ")]
    assert rows == [
        "| one call in process",
        "| ---",
        f"| {CALLS[0].title}",
        f"| {CALLS[1].title}",
    ]
    calls = json.loads(last)["calls"]
    assert {case: list(found) for case, found in calls.items()} == {
        "add": ["bare", "gate"],
        "order": ["bare", "gate"],
    }
    assert calls["add"]["bare"]["function_calls"] < calls["add"]["gate"]["function_calls"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("contestant", [*CALLS[1:3], *idle(count=3, audit_bytes=20_000)], ids=lambda each: each.name)
async def test_our_contestants_give_the_right_value(contestant, case):
    async with AsyncExitStack() as stack:
        prepared = await contestant.load()(case, stack)
        assert prepared.value(await prepared.call()) == case.expected
        await prepared.settle()


def test_a_contestant_that_cannot_start_is_named_and_the_others_are_measured():
    broken = Contestant("broken", "broken", "benchmarks.peers.nobody:setup", "callgate")
    found = hold([broken, BARE], "add", TINY)
    assert isinstance(found["broken"], Failed)
    assert isinstance(found["bare"], Measured)


def test_a_contestant_that_gives_a_wrong_value_is_not_measured():
    liar = Contestant("liar", "liar", f"{LIAR}:setup", "callgate")
    found = {case: type(hold([liar], case, TINY)["liar"]) for case in CASES}
    assert found == {"add": Measured, "order": Failed}


def test_the_stages_of_recording_a_call_are_measured_for_both_calls():
    ended = subprocess.run(
        [sys.executable, "benchmarks/records.py", "--calls", "5"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    *table, last = ended.stdout.splitlines()
    found = json.loads(last)
    assert list(found) == list(CASES)
    for costs in found.values():
        assert sum(title in line for title in costs for line in table) >= len(costs)
        assert all(best <= median and calls > 0 for median, best, calls in costs.values())
