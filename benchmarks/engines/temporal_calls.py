"""A workflow of Temporal with one activity, on a server that runs already.

python benchmarks/engines/temporal_calls.py HOST:PORT COUNT AT_ONCE
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

from callers import ANSWER, NAME, measure
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker


@activity.defn
async def note(text: str) -> str:
    return ANSWER


@workflow.defn(sandboxed=False)
class Call:
    @workflow.run
    async def run(self, text: str) -> str:
        limit = timedelta(seconds=60)
        return await workflow.execute_activity(note, text, start_to_close_timeout=limit)


async def main(address: str, count: int, at_once: int) -> float:
    client, stamp = await Client.connect(address), time.time_ns()
    worker = Worker(
        client,
        task_queue=NAME,
        workflows=[Call],
        activities=[note],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )

    async def call(number: int) -> str:
        return await client.execute_workflow(Call.run, "x", id=f"{stamp}-{number}", task_queue=NAME)

    async with worker:
        return await measure(call, count, at_once)


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
