"""Tools that one session was given: its own, and never in the place of anybody's."""

from __future__ import annotations

import pytest

from callgate.agent.subagents import worker_of
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolNotFound, ToolRegistrationError
from callgate.core.sessions import Session
from callgate.dispatch.registry import Registry
from callgate.dispatch.resolve import resolve
from tests.support import make_tool


def names(registry: Registry, session: Session) -> list[str]:
    return [tool.name for tool in registry.listed(session)]


@pytest.mark.spec("T31")
def test_a_given_tool_is_there_for_its_session_and_its_workers_alone() -> None:
    registry, first, second = Registry(), Session(workspace="/"), Session(workspace="/")
    registry.register(make_tool("shared"))
    one = registry.give(first.id, make_tool("mine"))
    two = registry.give(second.id, make_tool("mine"))
    worker = worker_of(first)
    found = [registry.find("mine", each) for each in (first, worker, second, Session(workspace="/"), None)]
    assert found == [one, one, two, None, None]
    assert [names(registry, each) for each in (first, worker)] == [["shared", "mine"]] * 2
    assert [tool.name for tool in registry] == ["shared"]
    registry.take_back(first.id)
    assert (registry.find("mine", first), registry.find("mine", second)) == (None, two)


@pytest.mark.spec("T22")
@pytest.mark.parametrize("taken", ["shared", "other", "Shared"])
def test_a_given_tool_takes_no_name_of_another(taken: str) -> None:
    registry, session = Registry(), Session(workspace="/")
    registry.register(make_tool("shared", aliases=("other",)))
    registry.give(session.id, make_tool("mine"))
    for name in (taken, "mine"):
        with pytest.raises(ToolRegistrationError):
            registry.give(session.id, make_tool(name, source="mcp"))
    assert names(registry, session) == ["shared", "mine"]


@pytest.mark.spec("T22")
def test_a_tool_of_everyone_that_comes_later_is_the_one_that_is_meant() -> None:
    registry, session = Registry(), Session(workspace="/")
    registry.give(session.id, make_tool("late"))
    late = registry.register(make_tool("late"))
    assert registry.find("late", session) is late
    assert registry.listed(session) == [late]


def test_a_withheld_tool_is_hidden_with_its_reason_until_it_is_shown_again() -> None:
    registry, session = Registry(), Session(workspace="/")
    tool = registry.give(session.id, make_tool("mine"))
    call = ToolCall(tool="mine", arguments={}, session=session, caller=CallerKind.CLI)
    registry.withhold(session.id, "mine", "it has changed")
    with pytest.raises(ToolNotFound):
        resolve(call, registry)
    assert (names(registry, session), registry.hidden_because(tool, session)) == ([], "it has changed")
    registry.withhold(session.id, "mine", None)
    assert resolve(call, registry) is tool
