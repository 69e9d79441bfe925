"""What every source of tools promises, whatever is behind it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.core.sessions import Mode, Session
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import Disabled, FixedTools, ForSession, Lazy, OnCondition, OnlyIn, ToolSource
from tests.kernel.contract.tool_sources import CHANGING, KINDS, Made
from tests.support import make_tool

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=KINDS)
async def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Made]:
    if "Node" in request.param and shutil.which("node") is None:
        pytest.skip("needs node: not installed")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    made = await KINDS[request.param](tmp_path, site)
    yield made
    await made.source.close()
    await made.wired.close()


def session_of(made: Made, mode: Mode = Mode.WRITE) -> Session:
    return made.wired.session(str(Path(made.wired.home.path).parent / "ws"), mode)


def names(registry: Registry, session: Session) -> set[str]:
    return {tool.name for tool in registry.listed(session)}


async def error_of(made: Made, session: Session) -> ToolErrorClass | None:
    call = ToolCall(tool=made.tool, arguments=made.arguments, session=session, caller=CallerKind.CLI)
    result = await made.wired.runtime.calls.run(call)
    return None if result.error is None else result.error.error_class


async def test_its_tools_are_found_seen_and_called_and_nothing_runs_before(made: Made) -> None:
    registry, session = made.wired.registry, session_of(made)
    registry.add(Lazy([made.tool], lambda: made.source))
    assert made.is_idle() and registry.find("nosuch") is None and made.is_idle()
    found = registry.find(made.tool, session)
    assert found is not None and found.name == made.tool
    assert made.tool in names(registry, session) and names(registry, session_of(made, Mode.NONE)) == set()
    assert await error_of(made, session) is None


async def test_names_are_its_own_before_it_is_loaded(made: Made) -> None:
    loads = list[int]()

    def load() -> ToolSource:
        loads.append(1)
        return made.source

    registry = Registry()
    registry.add(Lazy([made.tool], load))
    registry.register(make_tool("another_one"))
    assert (loads, made.is_idle()) == ([], True)
    with pytest.raises(ToolRegistrationError, match="is taken by"):
        registry.register(make_tool(made.tool, source="mcp"))
    assert loads == [1]
    assert [tool.name for tool in registry][-1] == "another_one"


async def test_of_two_tools_with_one_name_the_first_has_it(made: Made) -> None:
    free = Registry()
    free.add(made.source)
    all_names = {tool.name for tool in free}
    free.remove(made.source)
    registry = Registry()
    first = registry.register(make_tool(made.tool, source="mcp"))
    try:
        registry.add(made.source)
        registry.load_all()
    except ToolRegistrationError as error:
        assert not made.leaves_out and repr(made.tool) in str(error)
    assert registry.find(made.tool) is first
    others = {tool.name for tool in registry} - {made.tool}
    assert others == (all_names - {made.tool} if made.leaves_out else set())


async def test_whoever_listens_hears_that_its_tools_came_and_went(made: Made) -> None:
    registry, heard = Registry(), list[int]()
    stop = registry.listen(lambda: heard.append(1))
    registry.add(made.source)
    registry.load_all()
    assert len(heard) == 1
    registry.remove(made.source)
    assert len(heard) == 2 and registry.find(made.tool) is None and list(registry) == []
    stop()
    registry.register(make_tool(made.tool, source="mcp"))
    assert len(heard) == 2


@pytest.mark.parametrize("made", CHANGING, indirect=True)
async def test_a_change_of_its_tools_is_taken_over_at_once(made: Made) -> None:
    assert made.empty is not None
    registry, heard = Registry(), list[int]()
    registry.add(made.source)
    stop = made.source.listen(lambda: heard.append(1))
    made.empty()
    assert (len(heard), list(registry)) == (1, [])
    registry.register(make_tool(made.tool, source="mcp"))
    stop()
    made.empty()
    assert len(heard) == 1


async def test_closing_twice_is_closing_once_and_nothing_runs_then(made: Made) -> None:
    registry, session = made.wired.registry, session_of(made)
    registry.add(made.source)
    assert await error_of(made, session) is None
    await registry.close()
    await registry.close()
    await made.source.close()
    assert made.empty is None or made.is_idle()


async def test_for_one_session_only_it_is_there_for_that_session_alone(made: Made) -> None:
    registry, session, other = made.wired.registry, session_of(made), session_of(made)
    registry.add(ForSession(made.source, session.id))
    registry.load_all()
    assert made.tool in names(registry, session) and names(registry, other) == set()
    assert (registry.find(made.tool, other), registry.find(made.tool)) == (None, None)
    assert [await error_of(made, each) for each in (session, other)] == [None, ToolErrorClass.NOT_FOUND]


async def test_where_it_is_hidden_everyone_learns_why(made: Made) -> None:
    reasons = dict[str, str]()
    wrappers = {
        "no time": OnCondition(made.source, lambda session: "no time"),
        "it belongs to the workspace /nowhere": OnlyIn(made.source, "/nowhere"),
        "it is broken": Disabled(made.source, reasons),
    }
    session = session_of(made)
    reasons[made.tool] = "it is broken"
    for reason, source in wrappers.items():
        registry = Registry()
        registry.add(source)
        tool = registry.find(made.tool, session)
        assert tool is not None and made.tool not in names(registry, session)
        assert registry.hidden_because(tool, session) == registry.missing_because(tool, session) == reason
    reasons.clear()
    assert made.tool in names(registry, session)


async def test_what_the_settings_disable_is_found_and_not_seen(made: Made) -> None:
    registry, session = made.wired.registry, session_of(made)
    registry.add(OnlyIn(made.source, session.workspace))
    registry.disable_only([made.tool], "disabled in settings")
    tool = registry.find(made.tool)
    assert tool is not None and registry.hidden_because(tool, session) == "disabled in settings"
    assert await error_of(made, session) is ToolErrorClass.NOT_FOUND
    registry.disable_only([], "disabled in settings")
    assert await error_of(made, session) is None


def test_wrappers_pass_on_what_they_do_not_change() -> None:
    lazy = Lazy(("mail_*",), lambda: FixedTools([make_tool("mail_read")], listed=False))
    source = ForSession(Disabled(OnlyIn(lazy, "/"), {}), "s1")
    assert (source.names, source.is_lazy) == (("mail_*",), True)
    (tool,) = source.tools()
    assert (tool.listed, tool.session_id, source.tools()[0] is tool) == (False, "s1", True)
