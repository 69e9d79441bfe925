"""MCP servers where the workspace and callgate's home are in each other, as for a user who runs
callgate in the home directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.features.mcp.packages.worlds import World
from tests.needs import needs

pytestmark = needs("linux")

SERVER = """
import json, os, sys

def attempt(kind, path):
    try:
        if kind == "list":
            return bool(os.listdir(path))
        with open(path, "a" if kind == "write" else "r") as file:
            return bool(file.write("x") if kind == "write" else file.read())
    except OSError:
        return False

def answer(message):
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
    if message["method"] == "tools/list":
        return {"tools": [{"name": "try_all", "inputSchema": {"type": "object"}}]}
    own = [["write", os.path.join(os.environ[name], "new")] for name in ("HOME", "XDG_CACHE_HOME")]
    found = [attempt(*each) for each in own + json.loads(sys.argv[1])]
    return {"content": [{"type": "text", "text": json.dumps(found)}]}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}), flush=True)
"""
LOCATIONS = {
    "home": ("home", "home/.callgate"),
    "parent of home": (".", "home/.callgate"),
    "CALLGATE_HOME": ("workspace", "workspace/state/callgate"),
    "private home": ("home/.callgate/mcp/x/home", "home/.callgate"),
    "in the private home": ("home/.callgate/mcp/x/home/project", "home/.callgate"),
}


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("where", LOCATIONS)
def test_a_server_starts_and_has_its_private_directories_alone(world: World, where: str, effect: str) -> None:
    base = world.home.parent
    workspace, callgate_home = (Path(os.path.normpath(base / path)) for path in LOCATIONS[where])
    world.workspace, world.callgate_home = workspace, callgate_home
    other = callgate_home / "mcp/other/home/file"
    for path in (workspace, other.parent):
        path.mkdir(parents=True, exist_ok=True)
    callgate_home.chmod(0o700)
    other.write_text("as it was")
    (workspace / "mine").write_text("as it was")
    settings = callgate_home / "settings.toml"
    attempts = [
        ("read", workspace / "mine"),
        ("write", workspace / "mine"),
        *((kind, path) for path in (settings, other) for kind in ("read", "write")),
        ("write", callgate_home / "planted"),
        ("list", callgate_home / "run"),
        ("read", world.home / ".ssh/id"),
    ]
    texts = json.dumps([(kind, str(path)) for kind, path in attempts])
    program = ("/usr/bin/python3", "-c", SERVER, texts)
    added = world.run("mcp", "add", "x", "--effect", effect, "--yes", "--", *program)
    assert added.code == 0, added
    before = settings.read_text()
    ran = world.run("call", "mcp.x/try_all", "--yes", "--json")
    assert ran.code == 0, ran
    succeeds = json.loads(ran.json["content"][0]["text"])
    is_its_own = where != "private home" or effect == "write"
    assert succeeds == [is_its_own, True, True, effect == "write", *[False] * 7]
    assert (settings.read_text(), other.read_text()) == (before, "as it was")
    assert not (callgate_home / "planted").exists()
