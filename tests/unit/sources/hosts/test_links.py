"""What is asked of a host reaches it, whole and in the order of asking."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from callgate.core.commands import Command
from callgate.protocol.host_v1 import frames
from callgate.sandbox.broker_client import BrokerLauncher, BrokerProcess
from callgate.sources.hosts.links import Gone, Link
from callgate.sources.hosts.logs import HostLog

LISTENING = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"


async def test_requests_of_one_moment_arrive_in_order_though_the_link_ends_in_the_same(tmp_path: Path) -> None:
    process, link, heard = BrokerProcess(), Link(HostLog()), tmp_path / "heard"
    command = Command(argv=(sys.executable, "-c", LISTENING, str(heard)), cwd="/", env=dict(os.environ))
    await link.start(BrokerLauncher(process, None), command)
    params = [frames.RequiredTags(), frames.Init(config={"text": "x" * 20_000}), frames.GetUiElements()]
    outcomes = [link.ask(each)[1] for each in params]
    link.end()
    async with asyncio.timeout(10):
        ended = await asyncio.gather(*outcomes, return_exceptions=True)
        await link.ended()
    process.close()
    assert [type(each) for each in ended] == [Gone] * 3
    sent = [json.loads(line) for line in heard.read_bytes().splitlines()]
    assert [(each["id"], each["method"]) for each in sent] == [
        ("1", "required_tags"), ("2", "init"), ("3", "get_ui_elements"),
    ]  # fmt: skip
