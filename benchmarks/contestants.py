"""Who takes part, and where the code that prepares each of them is."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any, NamedTuple

from benchmarks.cases import Setup
from benchmarks.trees import ROOT


class Contestant(NamedTuple):
    name: str
    title: str
    setup: str
    """`module:function`."""
    package: str
    """The distribution whose version is shown, and without which it is left out."""
    is_peer: bool = False
    burden: int | None = None
    """How much lies idle, for those that carry something."""
    tree: str = ROOT
    """The checkout whose code it is."""

    @property
    def version(self) -> str | None:
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def load(self) -> Setup:
        module, _, function = self.setup.partition(":")
        setup: Any = getattr(import_module(module), function)
        if self.burden is None:
            return setup  # type: ignore[no-any-return]
        return lambda case, stack: setup(case, stack, self.burden)


def _ours(name: str, title: str, setup: str, burden: int | None = None) -> Contestant:
    return Contestant(name, title, f"benchmarks.ours:{setup}", "callgate", burden=burden)


def _peer(name: str, title: str, module: str, package: str) -> Contestant:
    return Contestant(name, title, f"benchmarks.peers.{module}:setup", package, is_peer=True)


BARE = Contestant(
    "bare", "bare `await`, nothing checked (the floor)", "benchmarks.peers.bare:setup", "callgate"
)

CALLS = (
    BARE,
    _ours("gate", "**callgate `Gate.call`, everything on**", "gate"),
    _ours("dispatcher", "callgate `dispatcher.run`, no audit, no reader", "dispatcher"),
    _peer(
        "pydantic-ai", "pydantic-ai `ToolManager.handle_call`", "pydantic_ai", "pydantic-ai-slim"
    ),
    _peer("mcp", "mcp `MCPServer.call_tool`", "mcp", "mcp"),
    _peer(
        "openai-agents", "openai-agents `invoke_function_tool`", "openai_agents", "openai-agents"
    ),
    _peer("langchain", "langchain `ainvoke`", "langchain", "langchain-core"),
    _peer("fastmcp", "FastMCP client, in memory", "fastmcp", "fastmcp"),
)


def loads() -> tuple[Contestant, ...]:
    """The same call of callgate: plain, with an effect, and with more rules or sessions."""
    return (
        _ours("plain", "nothing else", "gate"),
        _ours("effects", "an effect: its start and end on the disk", "effects"),
        _ours("rules-100", "100 rules", "rules", 100),
        _ours("rules-1000", "1,000 rules", "rules", 1_000),
        _ours("sessions-300", "300 sessions in turn", "many_sessions", 300),
    )


def idle(count: int, audit_bytes: int) -> tuple[Contestant, ...]:
    """The same call of callgate: with nothing idle, then with much."""
    return (
        _ours("plain", "nothing idle", "gate"),
        _ours("many-tools", f"{count:,} registered tools", "many_tools", count),
        _ours("large-audit", f"audit file of {audit_bytes / 1e6:g} MB", "large_audit", audit_bytes),
        _ours("old-sessions", f"{count:,} finished sessions", "old_sessions", count),
    )
