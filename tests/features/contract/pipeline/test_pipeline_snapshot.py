"""Every entry into the dispatch pipeline gives the same events, audit records and results as before.

`snapshots/` has one file per entry: JSON lines, each a part of a scripted call (an event, a
question, a message of the surface, the audit record, the result). Ids, times, hashes and
temporary paths are masked. After a change of behavior that is intended, regenerate the files and
review their diff:

    PYTEST_UPDATE_SNAPSHOTS=1 python -m pytest tests/features/contract/pipeline
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.features.contract.pipeline.cases import Case
from tests.features.contract.pipeline.command_line import CLI, command_line
from tests.features.contract.pipeline.hook import HOOK, hook
from tests.features.contract.pipeline.library import FRAMEWORK, LIBRARY, framework, library
from tests.features.contract.pipeline.players import Open, play
from tests.features.contract.pipeline.proxy import PROXY, proxy
from tests.features.contract.pipeline.wires import ACP, HTTP, MCP, SOCKET, acp, http, mcp, socket
from tests.features.contract.pipeline.worker import WORKER, worker

SNAPSHOTS = Path(__file__).with_name("snapshots")
ENTRIES: dict[str, tuple[Open, Sequence[Case]]] = {
    "library": (library, LIBRARY),
    "framework": (framework, FRAMEWORK),
    "hook": (hook, HOOK),
    "proxy": (proxy, PROXY),
    "worker": (worker, WORKER),
    "http": (http, HTTP),
    "socket": (socket, SOCKET),
    "mcp": (mcp, MCP),
    "acp": (acp, ACP),
    "cli": (command_line, CLI),
}


def compare(name: str, lines: Sequence[dict[str, Any]]) -> None:
    """Fail with a readable difference to the stored snapshot, or store a new one."""
    path = SNAPSHOTS / f"{name}.jsonl"
    text = "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in lines)
    if os.environ.get("PYTEST_UPDATE_SNAPSHOTS"):
        path.write_text(text)
        return
    before, after = _readable(path.read_text()), _readable(text)
    if before != after:
        difference = "\n".join(difflib.unified_diff(before, after, "snapshot", "this run", lineterm="", n=4))
        pytest.fail(f"{name}: the dispatch pipeline behaves differently\n{difference}", pytrace=False)


def _readable(text: str) -> list[str]:
    """One line per field, each with the name of its case."""
    found = []
    for line in text.splitlines():
        part = json.loads(line)
        case = part.pop("case")
        found += [f"{case}: {each}" for each in json.dumps(part, indent=1, ensure_ascii=False).splitlines()]
    return found


@pytest.mark.parametrize("name", ENTRIES)
async def test_the_pipeline_behaves_as_in_its_snapshot(name: str) -> None:
    open, cases = ENTRIES[name]
    lines = []
    for case in cases:
        lines += await play(open, case)
    compare(name, lines)
