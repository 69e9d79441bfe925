"""Tools of one session: its own, and never in the place of anybody's."""

from __future__ import annotations

import pytest

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolNotFound, ToolRegistrationError
from callgate.core.sessions import Session
from callgate.dispatch.resolve import resolve
from callgate.dispatch.tools.registry import Registered, Registry
from callgate.dispatch.tools.sources import Disabled, FixedTools, ForSession, ToolSource
from callgate.features.chat.agent.tools import worker_of
from tests.support import make_tool


def names(registry: Registry, session: Session) -> list[str]:
    return [tool.name for tool in registry.listed(session)]


def give(registry: Registry, session: Session, *tools: str, origin: str = "python") -> ToolSource:
    source = ForSession(FixedTools([make_tool(name, source=origin) for name in tools]), session.id)
    registry.add(source)
    return source


def found(registry: Registry, name: str, session: Session | None) -> Registered | None:
    return registry.find(name, session)


@pytest.mark.spec("T31")
def test_a_tool_of_a_session_is_there_for_it_and_its_workers_alone() -> None:
    registry, first, second = Registry(), Session(workspace="/"), Session(workspace="/")
    registry.register(make_tool("shared"))
    source = give(registry, first, "mine")
    give(registry, second, "mine")
    one, two = found(registry, "mine", first), found(registry, "mine", second)
    assert one is not None and two is not None and one is not two
    worker = worker_of(first)
    others = [registry.find("mine", each) for each in (worker, Session(workspace="/"), None)]
    assert others == [one, None, None]
    assert [names(registry, each) for each in (first, worker)] == [["shared", "mine"]] * 2
    assert [tool.name for tool in registry] == ["shared"]
    registry.remove(source)
    registry.remove(source)
    assert (registry.find("mine", first), registry.find("mine", second)) == (None, two)


@pytest.mark.spec("T22")
@pytest.mark.parametrize("taken", ["shared", "other", "Shared"])
def test_a_tool_of_a_session_takes_no_name_of_another(taken: str) -> None:
    registry, session = Registry(), Session(workspace="/")
    registry.register(make_tool("shared", aliases=("other",)))
    give(registry, session, "mine")
    for name in (taken, "mine"):
        with pytest.raises(ToolRegistrationError):
            give(registry, session, name, origin="mcp")
    assert names(registry, session) == ["shared", "mine"]


@pytest.mark.spec("T22")
def test_a_tool_of_everyone_that_comes_later_is_the_one_that_is_meant() -> None:
    registry, session = Registry(), Session(workspace="/")
    give(registry, session, "late")
    late = registry.register(make_tool("late"))
    assert registry.find("late", session) is late
    assert registry.listed(session) == [late]


def test_a_disabled_tool_is_hidden_with_its_reason_until_it_is_shown_again() -> None:
    registry, session, reasons = Registry(), Session(workspace="/"), dict[str, str]()
    registry.add(ForSession(Disabled(FixedTools([make_tool("mine")]), reasons), session.id))
    tool = found(registry, "mine", session)
    assert tool is not None
    call = ToolCall(tool="mine", arguments={}, session=session, caller=CallerKind.CLI)
    reasons["mine"] = "it has changed"
    with pytest.raises(ToolNotFound, match="it has changed"):
        resolve(call, registry)
    assert (names(registry, session), registry.hidden_because(tool, session)) == ([], "it has changed")
    reasons.clear()
    assert resolve(call, registry) is tool
