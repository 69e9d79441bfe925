"""Tools that are expected: nothing is loaded for them before somebody looks, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Mode, Session
from callgate.dispatch.registry import Registry
from tests.support import make_tool


class Expecting:
    """A registry that expects the tools `mail_read` and `mail_send`, and `find`."""

    def __init__(self, *before: str) -> None:
        self.registry = Registry()
        self.brought = 0
        for name in before:
            self.registry.register(make_tool(name))
        self.registry.expect(("mail_*", "find"), self._bring)

    def _bring(self) -> None:
        self.brought += 1
        for name in ("mail_read", "mail_send", "find"):
            aliases = ("mail_get",) if name == "mail_read" else ()
            self.registry.register(make_tool(name, aliases=aliases))

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self.registry]


def found(registry: Registry, name: str, session: Session | None = None) -> str | None:
    tool = registry.find(name, session)
    return None if tool is None else tool.name


def test_nothing_is_brought_before_somebody_looks() -> None:
    made = Expecting("first")
    made.registry.register(make_tool("find_more"))
    assert (found(made.registry, "first"), found(made.registry, "nosuch")) == ("first", None)
    assert made.brought == 0


@pytest.mark.parametrize("name", ["mail_read", "mail_get", "mail_send", "find", "mail_nosuch"])
def test_whoever_looks_for_one_finds_it_and_all_are_brought_once(name: str) -> None:
    made = Expecting()
    expected = {"mail_get": "mail_read", "mail_nosuch": None}.get(name, name)
    assert (found(made.registry, name), found(made.registry, name)) == (expected, expected)
    assert (made.brought, made.names) == (1, ["mail_read", "mail_send", "find"])


@pytest.mark.parametrize("look", [None, "find"])
def test_the_list_has_everyone_in_the_order_of_announcement_whoever_was_looked_at_first(
    look: str | None,
) -> None:
    made = Expecting("first")
    made.registry.register(make_tool("last"))
    if look is not None:
        made.registry.find(look)
    order = ["first", "mail_read", "mail_send", "find", "last"]
    listed = made.registry.listed(Session(workspace="/", mode=Mode.READ))
    assert ([tool.name for tool in listed], made.names, made.brought) == (order, order, 1)


@pytest.mark.spec("S4-03")
@pytest.mark.parametrize(
    "take",
    [
        lambda registry, factory: registry.register(factory),
        lambda registry, factory: registry.give("s1", factory),
    ],
    ids=["register", "give"],
)
@pytest.mark.parametrize("names", [("mail_read",), ("find",), ("other", "mail_get")], ids=str)
def test_an_expected_name_is_taken(names: tuple[str, ...], take: Callable[[Registry, Any], Any]) -> None:
    made = Expecting()
    with pytest.raises(ToolRegistrationError):
        take(made.registry, make_tool(names[0], aliases=names[1:]))
    assert made.names == ["mail_read", "mail_send", "find"]


def test_a_name_that_only_begins_so_is_free() -> None:
    made = Expecting()
    made.registry.register(make_tool("mail_merge"))
    assert (found(made.registry, "mail_merge"), made.brought) == ("mail_merge", 1)


def test_who_expects_a_name_that_is_taken_is_told_at_once() -> None:
    with pytest.raises(ToolRegistrationError):
        Expecting("mail_send")


@pytest.mark.spec("S4-10")
def test_an_expected_tool_that_is_unregistered_does_not_come_back() -> None:
    made = Expecting()
    made.registry.unregister("mail_send")
    assert made.names == ["mail_read", "find"]


def test_the_tool_of_everyone_is_meant_where_a_session_was_given_one_before() -> None:
    registry, session = Registry(), Session(workspace="/")
    own = registry.give(session.id, make_tool("mail_read"))
    registry.expect(("mail_*",), lambda: [registry.register(make_tool("mail_read"))] and None)
    met = registry.find("mail_read", session)
    assert met is not None and met is not own


def test_names_that_could_not_be_brought_are_not_free() -> None:
    registry, tries = Registry(), list[int]()

    def bring() -> None:
        tries.append(1)
        raise OSError("gone")

    registry.expect(("mail_*",), bring)
    for look in (registry.find, lambda name: registry.register(make_tool(name))):
        with pytest.raises(OSError, match="gone"):
            look("mail_read")
    assert len(tries) == 2
