"""`/metrics`: what Prometheus scrapes, with few series whatever callers do."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2

from callgate.features.reporting.prometheus import MOST_TOOLS, CallMetrics
from tests.features.reporting.export.records import record, write
from tests.features.web.instances import Instance

LINE = re.compile(r'[a-z_]+(\{([a-z]+="[^"\n]*",?)*\})? (\d+(\.\d+)?(e[+-]?\d+)?|\+Inf|inf)\Z')


def url(instance: Instance) -> str:
    return f"http://127.0.0.1:{instance.port}"


async def scraped(instance: Instance, token: str | None = None) -> httpx2.Response:
    headers = {"authorization": f"Bearer {token or instance.token}"}
    async with httpx2.AsyncClient(base_url=url(instance), headers=headers, timeout=30) as client:
        return await client.get("/metrics")


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not LINE.match(line)] == []
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_calls_are_counted_by_tool_effect_and_outcome(instance: Instance) -> None:
    client = instance.client()
    for _ in range(3):
        await client.call("show", what="x")
    await client.call("put", what="x")
    await client.call("a name that anybody chose")
    await client.call("another name")
    answer = await scraped(instance)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = values(answer.text)
    assert found['callgate_calls_total{tool="show",effect="none",outcome="ok"}'] == 3
    assert found['callgate_calls_total{tool="put",effect="write",outcome="permission_denied"}'] == 1
    assert found['callgate_calls_total{tool="unknown",effect="unknown",outcome="not_found"}'] == 2
    assert found['callgate_decisions_total{decision="deny",effect="write"}'] == 1
    assert found['callgate_call_duration_seconds_count{effect="none"}'] == 3
    assert found['callgate_call_duration_seconds_bucket{effect="none",le="+Inf"}'] == 3
    assert found['callgate_healthy{check="store"}'] == found['callgate_healthy{check="audit"}'] == 1
    assert found["callgate_questions_waiting"] == 0
    assert values((await scraped(instance)).text)['callgate_calls_total{tool="show",effect="none",outcome="ok"}'] == 3


async def test_the_token_is_needed(instance: Instance) -> None:
    assert (await scraped(instance, "wrong")).status_code == 401


def test_the_series_are_bounded(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    metrics = CallMetrics(path, lambda: chain)
    write(path, [record(n, tool=f't{n}"\n\\', source="mcp") for n in range(MOST_TOOLS + 100)])
    chain = path_chain(path)
    metrics.read()
    lines = [line for line in metrics.lines() if line.startswith("callgate_calls_total{")]
    assert len(lines) == MOST_TOOLS + 1
    assert [line for line in lines if 'tool="other"' in line and line.endswith(" 100")]
    assert all("\n" not in line for line in lines)


def path_chain(path: str) -> str:
    found = re.search(r'"chain":"(\w+)"', Path(path).read_text())
    assert found is not None
    return found[1]


def test_the_calls_of_other_processes_are_not_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    metrics = CallMetrics(path, lambda: "another")
    write(path, [record(1, source="builtin")])
    metrics.read()
    assert not [line for line in metrics.lines() if line.startswith("callgate_calls_total{")]
