"""What may be registered, what is refused, and who sees it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.core.sessions import Mode, Session
from callgate.dispatch.tools.registry import Registry
from callgate.instance.wiring.runtime import BUILT_IN
from tests.support import Bench, make_tool


def schema_with(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}}


FORBIDDEN = [
    {"$ref": "#/x"},
    {"oneOf": []},
    {"anyOf": [{"type": "string"}]},
    {"allOf": []},
    {"not": {}},
    {"if": {}, "then": {}, "else": {}},
    {"then": {}},
    {"else": {}},
    {"type": "object", "patternProperties": {}},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object", "dependencies": {}},
    {"type": "object", "unevaluatedProperties": False},
    {"$defs": {}},
    {"madeUp": 1},
    {"type": "text"},
    {"type": ["string", "date"]},
]
NESTINGS = [
    schema_with,
    lambda inner: schema_with({"type": "array", "items": inner}),
    lambda inner: schema_with({"type": "object", "properties": {"b": inner}}),
]


@pytest.mark.spec("S4-05", "S4-07")
@pytest.mark.parametrize("nest", NESTINGS)
@pytest.mark.parametrize("forbidden", FORBIDDEN, ids=lambda schema: "+".join(schema))
def test_a_construct_outside_the_subset_is_refused_at_any_depth(nest: Any, forbidden: Any) -> None:
    with pytest.raises(ToolRegistrationError, match=r"input_schema\.properties\.a"):
        Registry().register(make_tool(schema=nest(forbidden)))


@pytest.mark.spec("S4-05")
@pytest.mark.parametrize("keyword", ["oneOf", "$ref", "anyOf", "allOf", "not"])
def test_a_forbidden_keyword_at_the_top_is_refused(keyword: str) -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool(schema={"type": "object", keyword: []}))


@pytest.mark.spec("S4-06")
def test_the_constructs_of_the_subset_are_taken() -> None:
    Registry().register(
        make_tool(
            schema={
                "type": "object",
                "title": "T",
                "description": "D",
                "additionalProperties": False,
                "required": ["s"],
                "properties": {
                    "s": {"type": "string", "format": "date", "minLength": 1, "maxLength": 9},
                    "p": {"type": "string", "pattern": "^a$", "examples": ["a"]},
                    "n": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
                    "i": {"type": ["integer", "null"]},
                    "e": {"enum": ["x", 1]},
                    "c": {"const": 1},
                    "l": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
                    "o": {"type": "object", "additionalProperties": True},
                },
            }
        )
    )


@pytest.mark.spec("S4-08", "T-19")
@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"properties": {}}, {"type": ["object"]}])
def test_the_top_of_a_schema_must_be_an_object(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool(schema=schema))


@pytest.mark.spec("S4-09")
@pytest.mark.parametrize(
    "broken",
    [
        {"required": "a"},
        {"properties": []},
        {"properties": {"a": {"type": "string", "minLength": -1}}},
        {"properties": {"a": {"enum": "x"}}},
        {"properties": {"a": {"type": "string", "pattern": "("}}},
        {"properties": {"a": {"type": "integer", "default": "x"}}},
    ],
)
def test_a_structurally_broken_schema_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool(schema={"type": "object", **broken}))


@pytest.mark.spec("S4-03")
def test_a_second_tool_of_the_same_name_is_refused_and_the_first_stays() -> None:
    registry = Registry()
    first = registry.register(make_tool("probe"))
    with pytest.raises(ToolRegistrationError):
        registry.register(make_tool("probe", SideEffects.EXECUTE))
    assert registry.find("probe") is first


@pytest.mark.spec("T22")
@pytest.mark.parametrize("name", ["Probe", "prоbe", "probe ", "ｐrobe", "probe\u200b", "", "a" * 65, "1a", "a-b"])
def test_a_name_that_is_not_plain_snake_case_is_refused(name: str) -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool(name))


@pytest.mark.spec("T22")
def test_an_alias_cannot_take_the_name_of_another_tool() -> None:
    registry = Registry()
    registry.register(make_tool("probe"))
    with pytest.raises(ToolRegistrationError):
        registry.register(make_tool("other", aliases=("probe",)))
    assert registry.find("other") is None


@pytest.mark.spec("S4-04")
def test_a_tool_that_declares_no_effects_is_refused() -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool(effect=None))


def test_a_class_below_what_the_capabilities_reach_is_refused() -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool(effect=SideEffects.READ, capabilities=frozenset({Capability.STARTS_PROCESS})))


@pytest.mark.parametrize(
    ("capabilities", "effect"),
    [
        ({"starts-process", "pure"}, SideEffects.EXECUTE),
        ({"mutates-external"}, SideEffects.NETWORK),
        ({"controls-browser"}, SideEffects.NETWORK),
        ({"writes-files", "accesses-network"}, SideEffects.WRITE),
        ({"accesses-network"}, SideEffects.READ),
        ({"read-only"}, SideEffects.READ),
        ({"pure"}, SideEffects.NONE),
    ],
)
def test_the_class_is_derived_from_the_capabilities(capabilities: Any, effect: SideEffects) -> None:
    tool = Registry().register(make_tool(effect=None, capabilities=frozenset(map(Capability, capabilities))))
    assert tool.effect is effect


@pytest.mark.spec("S4-01")
def test_register_takes_a_factory_and_not_an_instance() -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(make_tool()())  # type: ignore[arg-type]


@pytest.mark.spec("S4-01")
@pytest.mark.parametrize("factory", [lambda: object(), dict, lambda: None])
def test_a_factory_must_make_tools(factory: Any) -> None:
    with pytest.raises(ToolRegistrationError):
        Registry().register(factory)


@pytest.mark.spec("S4-02")
@pytest.mark.parametrize("factory", BUILT_IN, ids=lambda factory: factory.__name__)
def test_every_built_in_makes_a_fresh_object_each_time(factory: Any) -> None:
    assert factory() is not factory()


@pytest.mark.spec("S4-02")
async def test_each_dispatch_uses_a_new_instance() -> None:
    made: list[object] = []
    Probe = make_tool()

    def factory() -> Any:
        made.append(Probe())
        return made[-1]

    bench = Bench("/", factory)
    made.clear()
    await bench.run("probe")
    await bench.run("probe")
    assert len(made) == 2
    assert made[0] is not made[1]


def test_a_shared_instance_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    shared = make_tool()()
    with caplog.at_level(logging.WARNING, "callgate"):
        Registry().register(lambda: shared)
    assert "one object for all calls" in caplog.text


@pytest.mark.spec("S4-10")
async def test_after_unregister_the_tool_is_gone_and_its_name_free() -> None:
    bench = Bench("/", make_tool("probe", aliases=("sonde",)))
    bench.dispatcher.unregister("probe")
    bench.dispatcher.unregister("never_there")
    assert (await bench.run("probe")).error.error_class is ToolErrorClass.NOT_FOUND
    assert (await bench.run("sonde")).error.error_class is ToolErrorClass.NOT_FOUND
    bench.dispatcher.register(make_tool("sonde"))


@pytest.mark.spec("S4-10")
async def test_a_call_under_way_survives_unregister() -> None:
    async def run(input: Any, context: Any) -> str:
        bench.dispatcher.unregister("probe")
        return "done"

    bench = Bench("/", make_tool(run=run))
    assert (await bench.run("probe")).text == "done"


@pytest.mark.spec("S4-11")
def test_a_session_is_told_only_of_tools_it_may_see() -> None:
    bench = Bench(
        "/",
        make_tool("plain"),
        make_tool("tagged", required_tags=frozenset({"vision"})),
        make_tool("memory_add", hidden_from_workers=True),
    )

    def names(**session: Any) -> set[str]:
        definitions = bench.dispatcher.get_definitions_for_session(Session(workspace="/", **session))
        return {definition.name for definition in definitions}

    assert names() == {"plain", "memory_add"}
    assert names(tags=frozenset({"vision"})) == {"plain", "tagged", "memory_add"}
    assert names(is_worker=True) == {"plain"}
    assert names(mode=Mode.NONE) == set()


@pytest.mark.spec("S4-11")
async def test_a_tool_a_session_may_not_see_cannot_be_called_either() -> None:
    bench = Bench("/", make_tool("memory_add", hidden_from_workers=True))
    bench.session.is_worker = True
    assert (await bench.run("memory_add")).error.error_class is ToolErrorClass.NOT_FOUND


@pytest.mark.spec("S4-05")
def test_the_schema_of_an_mcp_server_may_use_all_of_json_schema() -> None:
    Registry().register(make_tool(schema=schema_with({"anyOf": [{"type": "string"}]}), source="mcp"))


def test_a_tool_whose_execute_is_not_async_is_refused() -> None:
    class Sync(make_tool()):  # type: ignore[misc]
        def execute(self, input: Any, context: Any) -> Any:
            return None

    with pytest.raises(ToolRegistrationError, match="async"):
        Registry().register(Sync)
