"""What is asked of a host reaches it, whole and in the order of asking."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from callgate.core.commands import Command
from callgate.protocol.host_v1 import frames
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sources.host_links import MOST_UNREAD, HostExited, Link
from callgate.sources.logs import LifeLog

LISTENING = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"


async def test_requests_of_one_moment_arrive_in_order_though_the_link_ends_in_the_same(tmp_path: Path) -> None:
    process, link, heard = BrokerProcess(), Link(LifeLog()), tmp_path / "heard"
    command = Command(argv=(sys.executable, "-c", LISTENING, str(heard)), cwd="/", env=dict(os.environ))
    await link.start(BrokerLauncher(process, None), command)
    params = [frames.RequiredTags(), frames.Init(config={"text": "x" * 20_000}), frames.GetUiElements()]
    outcomes = [link.ask(each)[1] for each in params]
    link.end()
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*outcomes, return_exceptions=True)
        await link.ended()
    process.close()
    assert [type(each) for each in ended] == [HostExited] * 3
    sent = [json.loads(line) for line in heard.read_bytes().splitlines()]
    assert [(each["id"], each["method"]) for each in sent] == [
        ("1", "required_tags"),
        ("2", "init"),
        ("3", "get_ui_elements"),
    ]


ASKING = """
import json, sys
init = json.loads(sys.stdin.readline())
print(json.dumps({"v": 1, "id": init["id"], "ok": True, "result": {"value": {}, "host": {"asks": ["read_file"]}}}), flush=True)
sys.stdin.readline()
for n in range(60):
    print(json.dumps({"v": 1, "id": f"h{n}", "method": "read_file", "params": {"call": "2", "path": "a"}}), flush=True)
open(sys.argv[1]).read()
answers = [json.loads(sys.stdin.readline()) for _ in range(60)]
value = [answers[n]["id"] == f"h{n}" for n in range(60)]
print(json.dumps({"v": 1, "id": "2", "ok": True, "result": {"value": value}}), flush=True)
"""


async def test_a_host_that_does_not_read_is_told_no_more_than_fits_until_it_does(tmp_path: Path) -> None:
    process, link, go = BrokerProcess(), Link(LifeLog()), tmp_path / "go"
    os.mkfifo(go)
    command = Command(argv=(sys.executable, "-c", ASKING, str(go)), cwd="/", env=dict(os.environ))
    await link.start(BrokerLauncher(process, None), command)
    told = 0

    async def tell(asked: frames.OfRuntime) -> str:
        nonlocal told
        told += 1
        return "x" * (MOST_UNREAD // 2)

    async with asyncio.timeout(60):
        offer = frames.Offer(answers=sorted(frames.OF_RUNTIME))
        await link.ask(frames.Init(config={}, runtime=offer))[1]
        params = frames.ExecuteTool(tool_name="t", arguments={})
        outcome = link.ask(params, on_ask=tell)[1]
        pipe = await asyncio.to_thread(os.open, go, os.O_WRONLY)  # it has asked for everything
        for _ in range(200):  # whatever can be told now is told
            await asyncio.sleep(0)
        before = told
        os.close(pipe)
        assert (await outcome).result.value == [True] * 60
        link.end()
        await link.ended()
    process.close()
    assert (before < 5, told) == (True, 60)
