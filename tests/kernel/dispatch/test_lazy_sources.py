"""Lazy sources: nothing is loaded before somebody looks at one of their tools, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Mode, Session
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools, ForSession, Lazy
from tests.support import make_tool


class Expecting:
    """A registry with a lazy source of the tools `mail_read` and `mail_send`, and `find`."""

    def __init__(self, *before: str) -> None:
        self.registry = Registry()
        self.loaded = 0
        for name in before:
            self.registry.register(make_tool(name))
        self.registry.add(Lazy(("mail_*", "find"), self._load))

    def _load(self) -> FixedTools:
        self.loaded += 1
        aliases = {"mail_read": ("mail_get",)}
        names = ("mail_read", "mail_send", "find")
        return FixedTools([make_tool(name, aliases=aliases.get(name, ())) for name in names])

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self.registry]


def found(registry: Registry, name: str, session: Session | None = None) -> str | None:
    tool = registry.find(name, session)
    return None if tool is None else tool.name


def test_nothing_is_loaded_before_somebody_looks() -> None:
    made = Expecting("first")
    made.registry.register(make_tool("find_more"))
    assert (found(made.registry, "first"), found(made.registry, "nosuch")) == ("first", None)
    assert made.loaded == 0


@pytest.mark.parametrize("name", ["mail_read", "mail_get", "mail_send", "find", "mail_nosuch"])
def test_whoever_looks_for_one_finds_it_and_all_are_loaded_once(name: str) -> None:
    made = Expecting()
    expected = {"mail_get": "mail_read", "mail_nosuch": None}.get(name, name)
    assert (found(made.registry, name), found(made.registry, name)) == (expected, expected)
    assert (made.loaded, made.names) == (1, ["mail_read", "mail_send", "find"])


@pytest.mark.parametrize("look", [None, "find"])
def test_the_list_has_all_in_the_order_of_their_sources_whichever_was_loaded_first(look: str | None) -> None:
    made = Expecting("first")
    made.registry.register(make_tool("last"))
    if look is not None:
        made.registry.find(look)
    order = ["first", "mail_read", "mail_send", "find", "last"]
    listed = made.registry.listed(Session(workspace="/", mode=Mode.READ))
    assert ([tool.name for tool in listed], made.names, made.loaded) == (order, order, 1)


def test_a_source_without_names_is_loaded_when_a_tool_is_found_nowhere_else() -> None:
    made, loaded = Expecting(), list[int]()
    made.registry.add(Lazy((), lambda: (loaded.append(1), FixedTools([make_tool("other")]))[1]))
    assert (found(made.registry, "find"), loaded) == ("find", [])
    assert (found(made.registry, "other"), found(made.registry, "nosuch"), loaded) == ("other", None, [1])


@pytest.mark.spec("S4-03")
@pytest.mark.parametrize(
    "take",
    [
        lambda registry, factory: registry.register(factory),
        lambda registry, factory: registry.add(ForSession(FixedTools([factory]), "s1")),
    ],
    ids=["register", "for a session"],
)
@pytest.mark.parametrize("names", [("mail_read",), ("find",), ("other", "mail_get")], ids=str)
def test_the_name_of_a_lazy_tool_is_taken(names: tuple[str, ...], take: Callable[[Registry, Any], Any]) -> None:
    made = Expecting()
    with pytest.raises(ToolRegistrationError):
        take(made.registry, make_tool(names[0], aliases=names[1:]))
    assert made.names == ["mail_read", "mail_send", "find"]


def test_a_name_that_only_begins_so_is_free() -> None:
    made = Expecting()
    made.registry.register(make_tool("mail_merge"))
    assert (found(made.registry, "mail_merge"), made.loaded) == ("mail_merge", 1)


def test_a_lazy_source_with_a_name_that_is_taken_is_an_error_at_once() -> None:
    with pytest.raises(ToolRegistrationError):
        Expecting("mail_send")


@pytest.mark.spec("S4-10")
def test_a_lazy_tool_that_is_unregistered_does_not_come_back() -> None:
    made = Expecting()
    made.registry.unregister("mail_send")
    assert made.names == ["mail_read", "find"]


def test_the_tool_of_everyone_is_meant_where_a_session_had_one_before() -> None:
    registry, session = Registry(), Session(workspace="/")
    registry.add(ForSession(FixedTools([make_tool("mail_read")]), session.id))
    own = registry.find("mail_read", session)
    registry.add(Lazy(("mail_*",), lambda: FixedTools([make_tool("mail_read")])))
    everyones = registry.find("mail_read", session)
    assert own is not None and own.session_id == session.id
    assert everyones is not None and everyones.session_id is None


def test_names_that_could_not_be_loaded_are_not_free() -> None:
    registry, tries = Registry(), list[int]()

    def load() -> FixedTools:
        tries.append(1)
        raise OSError("gone")

    registry.add(Lazy(("mail_*",), load))
    for look in (registry.find, lambda name: registry.register(make_tool(name))):
        with pytest.raises(OSError, match="gone"):
            look("mail_read")
    assert len(tries) == 2
