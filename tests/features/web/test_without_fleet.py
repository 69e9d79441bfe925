"""HTTP of an installation from which the feature for several servers was removed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
import asyncio, json, sys, urllib.request

class Removed:
    def find_spec(self, name, path=None, target=None):
        if name == "callgate.features.fleet" or name.startswith("callgate.features.fleet."):
            raise ModuleNotFoundError(name, name="callgate.features.fleet")

sys.meta_path.insert(0, Removed())
import callgate

def get(instance, path, body=None):
    headers = {"authorization": f"Bearer {instance.token}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(instance.url + path, data, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

async def main():
    found = {}
    async with callgate.serve([sys.argv[1]], http="127.0.0.1:0") as instance:
        async def ask(path, body=None):
            return await asyncio.to_thread(get, instance, path, body)
        found["session"] = (await ask("/v1/sessions", {}))[0]
        id = (await ask("/v1/sessions"))[1]["sessions"][0]["id"]
        found["messages"] = await ask(f"/v1/sessions/{id}/messages")
        found["calls"] = (await ask("/v1/calls"))[0]
        found["stats"] = (await ask("/v1/stats"))[1]["missing"]
        found["pool"] = (await ask("/v1/sessions", {"pool": "p"}))[1]["error"]["message"]
        found["servers"] = (await ask("/v1/servers"))[0]
        found["workers"] = (await ask("/v1/workers"))[0]
    print(json.dumps(found))

asyncio.run(main())
"""


def test_one_server_answers_and_has_no_routes_for_others(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    run = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "ws")],
        capture_output=True,
        text=True,
        timeout=120,
        env={"CALLGATE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
    )
    assert run.returncode == 0, run.stderr
    expected = (
        '{"session": 200, "messages": [200, {"messages": []}], "calls": 200, "stats": [],'
        ' "pool": "There is no such pool.", "servers": 404, "workers": 404}'
    )
    assert run.stdout.strip() == expected
