"""What a test needs of the machine; where it is missing, the test is skipped and listed.

    @needs("bwrap")
    def test_a_sandboxed_command_sees_no_home() -> None: ...

The end of a run names everything that was skipped, under "not tested here" (see conftest).
A test that finds out only while it runs calls `pytest.skip` and is listed the same way.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

_ACP_CLIENTS = Path(__file__).parents[1] / ".tools/acp/package-lock.json"
_ACP_AGENTS = Path(__file__).parents[1] / ".tools/acp-agents/package-lock.json"
_MCP_SERVERS = Path(__file__).parents[1] / ".tools/mcp_servers/requirements.txt"
_DEPLOY_TOOLS = Path(__file__).parents[1] / ".tools/deploy/tools.txt"
_SAFETY = Path(__file__).parents[1] / ".build/safety/bin/python"
_EMULATE = Path(__file__).parents[1] / ".tools/emulate/package-lock.json"

_UV = Path(__file__).parents[1] / ".tools/mcp_servers/python/bin/uv"
UV = str(_UV) if _UV.exists() else "uv"
"""The program that scripts/get_mcp_servers.sh gets, else that of the machine."""

_ADMIN_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_DOWNLOADED_POOLER = Path(__file__).parents[1] / ".tools/pgbouncer/pgbouncer"
PGBOUNCER = shutil.which("pgbouncer", path=_ADMIN_PATH) or shutil.which(str(_DOWNLOADED_POOLER))
"""The program of the machine, else that which scripts/get_pgbouncer.sh gets."""

_CHECKS: dict[str, tuple[Callable[[], bool], str]] = {
    "linux": (lambda: sys.platform == "linux", "this is not Linux"),
    "root": (lambda: os.geteuid() == 0, "the tests do not run as root"),
    "loop devices": (Path("/dev/loop-control").exists, "the machine offers none"),
    "no root": (lambda: os.geteuid() != 0, "the tests run as root"),
    "acp clients": (_ACP_CLIENTS.exists, "see scripts/get_acp_clients.sh"),
    "acp agents": (_ACP_AGENTS.exists, "see scripts/get_acp_agents.sh"),
    "uv": (lambda: shutil.which(UV) is not None, "see scripts/get_mcp_servers.sh"),
    "mcp servers": (_MCP_SERVERS.exists, "see scripts/get_mcp_servers.sh"),
    "no /tmp": (
        lambda: not str(Path(__file__).resolve()).startswith("/tmp/"),
        "the checkout lies in /tmp, which no command in the sandbox sees",
    ),
    "google-api-python-client": (lambda: find_spec("googleapiclient") is not None, "not installed"),
    "deploy tools": (_DEPLOY_TOOLS.exists, "see scripts/get_deploy_tools.sh"),
    "pgbouncer": (lambda: PGBOUNCER is not None, "see scripts/get_pgbouncer.sh"),
    "safety environment": (_SAFETY.exists, "`make safety` makes it"),
    "emulate": (_EMULATE.exists, "see scripts/get_emulate.sh"),
}
"""Every other name is a program that must be found on PATH."""


def missing(thing: str) -> str | None:
    """Why a thing is not here; None where it is."""
    if thing in _CHECKS:
        there, why = _CHECKS[thing]
        return None if there() else f"needs {thing}: {why}"
    return None if shutil.which(thing) else f"needs {thing}: not installed"


def needs(*things: str) -> pytest.MarkDecorator:
    """Skip the test unless all of these are here."""
    reasons = [reason for thing in things if (reason := missing(thing))]
    return pytest.mark.skipif(bool(reasons), reason="; ".join(reasons))
