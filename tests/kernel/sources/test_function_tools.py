"""A decorated function as a tool: its definition, its factory, its calls."""

from __future__ import annotations

import asyncio
import datetime
import enum
import functools
import pathlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolNotFound,
    ToolPermissionDenied,
    ToolRegistrationError,
    ToolTimeout,
    ToolUserDenied,
    ToolValidationError,
)
from callgate.core.schemas import ArgumentSchema
from callgate.core.tools import Tool, ToolContext, ToolDefinition, ToolOutput
from callgate.sources.functions import FunctionTool, ToolFunction, tool

NO_CONTEXT: Any = None


async def call(made: ToolFunction[..., Any], arguments: dict[str, Any]) -> ToolOutput:
    """As the dispatcher does it: validated first, then a fresh tool."""
    schema = ArgumentSchema(made.definition.input_schema, made.definition.name)
    return await made().execute(schema.check(arguments).arguments, NO_CONTEXT)


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x must not be negative")


@dataclass(frozen=True)
class Shape:
    corners: tuple[Point, ...]
    colour: Colour | None = None


class Tagged(TypedDict, total=False):
    colour: Colour
    point: Point


class Item(msgspec.Struct, frozen=True, rename="camel"):
    item_name: str
    amount: int = 1


# Defining


@pytest.mark.spec("S4-01", "S4-02")
def test_the_decorated_name_is_a_factory_of_fresh_tools() -> None:
    @tool(side_effects="read")
    async def probe(a: int) -> int:
        """Say a."""
        return a

    first, second = probe(), probe()
    assert isinstance(first, FunctionTool) and isinstance(first, Tool)
    assert first is not second
    assert first.definition is probe.definition


def test_the_written_function_stays_within_reach() -> None:
    @tool(side_effects="none")
    def double(a: int) -> int:
        """Twice a."""
        return a + a

    assert double.function(2) == 4
    assert (double.__name__, double.__doc__) == ("double", "Twice a.")


def test_everything_that_is_declared_is_in_the_definition() -> None:
    def written(path: str) -> None:
        """Not this."""

    made = tool(
        written,
        name="other_name",
        description="This.",
        side_effects="write",
        capabilities=["accesses-network"],
        destructive=True,
        path_params=["path"],
        timeout_s=5,
        max_concurrent=2,
        requires_workspace=False,
        kind="edit",
        tags=["a"],
        required_tags=["b"],
        hidden_from_workers=True,
        aliases=["third_name"],
        isolate=True,
    )
    assert made.isolate is True
    assert made.definition == ToolDefinition(
        name="other_name",
        description="This.",
        input_schema={
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
        side_effects=SideEffects.WRITE,
        capabilities=frozenset({Capability.WRITES_FILES, Capability.ACCESSES_NETWORK, Capability.DESTRUCTIVE}),
        path_params=("path",),
        timeout_s=5,
        max_concurrent=2,
        requires_workspace=False,
        kind="edit",
        tags=frozenset({"a"}),
        required_tags=frozenset({"b"}),
        hidden_from_workers=True,
        aliases=("third_name",),
    )


def test_the_effect_is_derived_from_capabilities() -> None:
    def probe() -> None: ...

    made = tool(probe, capabilities=[Capability.STARTS_PROCESS]).definition
    assert (made.side_effects, made.capabilities) == (
        SideEffects.EXECUTE,
        frozenset({Capability.STARTS_PROCESS}),
    )


@pytest.mark.spec("S4-04")
@pytest.mark.parametrize("options", [{}, {"destructive": True}, {"capabilities": []}])
def test_a_function_without_declared_effects_is_refused_by_name(options: Any) -> None:
    def undeclared() -> None: ...

    with pytest.raises(ToolRegistrationError, match="undeclared"):
        tool(undeclared, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"side_effects": "reading"},
        {"capabilities": ["flies"]},
        {"side_effects": "read", "capabilities": ["writes-files"]},
        {"side_effects": "none", "timeout_s": 0},
        {"side_effects": "none", "max_concurrent": 0},
        {"side_effects": "none", "path_params": ["nowhere"]},
        {"side_effects": "none", "name": "Not-Snake"},
        {"side_effects": "none", "aliases": ["Not-Snake"]},
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_written(options: Any) -> None:
    def probe() -> None: ...

    with pytest.raises(ToolRegistrationError):
        tool(probe, **options)


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        tool(side_effect="read")  # type: ignore[call-overload]


class NotAFunction:
    def __call__(self) -> None: ...


class takes_arguments:  # noqa: N801
    def __init__(self, a: int) -> None: ...
    def __call__(self, a: int) -> None: ...


def generates() -> Iterator[int]:
    yield 1


async def generates_async() -> Any:
    yield 1


@pytest.mark.parametrize(
    "thing",
    [
        NotAFunction,
        NotAFunction(),
        takes_arguments,
        functools.partial(print),
        len,
        generates,
        generates_async,
        lambda: None,
    ],
)
def test_only_functions_with_a_name_become_tools(thing: Any) -> None:
    with pytest.raises(ToolRegistrationError):
        tool(thing, side_effects="none")


def test_a_callable_object_does_not_become_a_tool_under_another_name() -> None:
    with pytest.raises(ToolRegistrationError):
        tool(takes_arguments(1), side_effects="none", name="probe")


async def test_bound_and_static_methods_become_tools() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = 0

        async def add(self, amount: int) -> int:
            self.total += amount
            return self.total

        @tool(side_effects="none")
        @staticmethod
        async def inner(a: int) -> int:
            return a

        @staticmethod
        @tool(side_effects="none")
        async def outer(a: int) -> int:
            return a

    counter = Counter()
    bound = tool(counter.add, side_effects="none")
    assert (await call(bound, {"amount": 2})).value == 2
    assert (await call(bound, {"amount": 3})).value == 5
    assert (await call(Counter.inner, {"a": 1})).value == 1
    assert (await call(Counter.outer, {"a": 1})).value == 1


# Calling


async def test_plain_arguments_reach_the_function_as_they_are() -> None:
    seen: dict[str, Any] = {}

    @tool(side_effects="none")
    async def probe(a: int, b: list[str], c: dict[str, Any], d: str = "x") -> None:
        seen.update(a=a, b=b, c=c, d=d)

    assert probe.prepare is None
    await call(probe, {"a": 1, "b": ["y"], "c": {"z": None}})
    assert seen == {"a": 1, "b": ["y"], "c": {"z": None}, "d": "x"}


@pytest.mark.parametrize(
    ("kind", "written", "built"),
    [
        (Colour, "red", Colour.RED),
        (list[Colour], ["red"], [Colour.RED]),
        (Point, {"x": 1}, Point(1)),
        (Point | None, None, None),
        (Point | None, {"x": 1, "y": 2}, Point(1, 2)),
        (str | list[Point], [{"x": 1}], [Point(1)]),
        (
            Shape,
            {"corners": [{"x": 1}, {"x": 2}], "colour": "blue"},
            Shape((Point(1), Point(2)), Colour.BLUE),
        ),
        (Tagged, {"point": {"x": 3}}, {"point": Point(3)}),
        (Item, {"itemName": "a"}, Item("a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, int], [1, 2], (1, 2)),
        (pathlib.Path, "a/b", pathlib.Path("a/b")),
        (pathlib.Path | None, "a", pathlib.Path("a")),
        (list[pathlib.Path], ["a"], [pathlib.Path("a")]),
        (datetime.date, "2001-02-03", datetime.date(2001, 2, 3)),
        (
            datetime.datetime,
            "2001-02-03T04:05:06Z",
            datetime.datetime(2001, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
        ),
        (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
        (Literal["a"], "a", "a"),
    ],
    ids=str,
)
async def test_arguments_are_converted_to_the_annotated_type(kind: Any, written: Any, built: Any) -> None:
    seen: list[Any] = []

    async def probe(thing: Any) -> None:
        seen.append(thing)

    probe.__annotations__["thing"] = kind
    await call(tool(probe, side_effects="none"), {"thing": written})
    assert seen == [built]
    assert type(seen[0]) is type(built)


POINTS = st.builds(Point, st.integers(0, 2**40), st.integers(-(2**40), 2**40))
SHAPES = st.builds(Shape, st.lists(POINTS).map(tuple), st.none() | st.sampled_from(Colour))


@given(SHAPES)
async def test_a_value_survives_the_way_through_json_and_back(shape: Shape) -> None:
    @tool(side_effects="none")
    async def echo(shape: Shape) -> Shape:
        assert isinstance(shape, Shape)
        return shape

    written = msgspec.json.decode(msgspec.json.encode(shape))
    assert (await call(echo, {"shape": written})).value == written


@pytest.mark.spec("T-19")
async def test_a_whole_number_is_an_int_however_it_was_written_and_defaults_apply() -> None:
    @tool(side_effects="none")
    async def probe(count: int, points: list[Point], colour: Colour = Colour.BLUE) -> str:
        return f"{count!r} {points!r} {colour!r}"

    output = await call(probe, {"count": 2.0, "points": [{"x": 3.0}]})
    assert output.value == f"2 [{Point(3, 0)!r}] {Colour.BLUE!r}"


async def test_what_only_the_type_refuses_is_a_validation_error_naming_the_parameter() -> None:
    @tool(side_effects="none")
    async def probe(points: list[Point]) -> None: ...

    with pytest.raises(ToolValidationError) as refused:
        await call(probe, {"points": [{"x": -1}]})
    (line,) = refused.value.validation_errors
    assert line.startswith("points: ")


async def test_text_input_arrives_in_the_one_parameter() -> None:
    @tool(side_effects="none", input="text")
    async def probe(script: str, context: ToolContext) -> str:
        assert context is NO_CONTEXT
        return script.upper()

    assert (await call(probe, {"text": "abc"})).value == "ABC"


async def test_a_context_comes_beside_converted_arguments() -> None:
    @tool(side_effects="none")
    async def probe(where: pathlib.Path, context: ToolContext, colour: Colour = Colour.RED) -> str:
        return f"{where!r} {context!r} {colour!r}"

    output = await probe().execute({"where": "a"}, NO_CONTEXT)
    assert output.value == f"{pathlib.Path('a')!r} None {Colour.RED!r}"


async def test_no_argument_can_stand_in_for_the_context() -> None:
    @tool(side_effects="none")
    async def probe(context: ToolContext) -> str:
        return type(context).__name__

    assert (await probe().execute({"context": "forged"}, NO_CONTEXT)).value == "NoneType"


# Sync and async


async def test_a_sync_function_runs_beside_the_loop() -> None:
    started, release = threading.Event(), threading.Event()

    @tool(side_effects="none")
    def probe() -> str:
        started.set()
        assert release.wait(60)
        return threading.current_thread().name

    running = asyncio.ensure_future(call(probe, {}))
    assert await asyncio.to_thread(started.wait, 10)
    release.set()
    assert (await running).value != threading.main_thread().name


async def test_a_tool_says_whether_its_work_can_be_stopped() -> None:
    @tool(side_effects="none")
    def sync() -> None: ...

    @tool(side_effects="none")
    async def not_sync() -> None: ...

    assert (sync().stoppable, not_sync().stoppable) == (False, True)
    assert (await sync().cancel(), await not_sync().cancel()) == (False, False)


async def test_a_sync_wrapper_around_an_async_function_is_awaited() -> None:
    async def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    assert (await call(tool(wrapper, side_effects="none"), {"a": 5})).value == 5


@pytest.mark.spec("S4-72")
@pytest.mark.parametrize(
    "error",
    [
        ToolNotFound,
        ToolValidationError,
        ToolPermissionDenied,
        ToolUserDenied,
        ToolTimeout,
        ToolExecutionError,
        ToolCancelled,
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_error_passes_through(error: type[ToolError], is_async: bool) -> None:
    raised = error("words for the agent")

    async def not_sync() -> None:
        raise raised

    def sync() -> None:
        raise raised

    with pytest.raises(error) as caught:
        await call(tool(not_sync if is_async else sync, side_effects="none"), {})
    assert caught.value is raised


@pytest.mark.parametrize(
    ("error", "caught"),
    [(KeyError("x"), KeyError), (StopIteration(), RuntimeError), (SystemExit(3), SystemExit)],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_any_other_exception_is_left_to_the_dispatcher(
    error: BaseException, caught: type[BaseException], is_async: bool
) -> None:
    async def not_sync() -> None:
        raise error

    def sync() -> None:
        raise error

    made = tool(not_sync if is_async else sync, side_effects="none")
    async with asyncio.timeout(60):
        with pytest.raises(caught):
            await made().execute({}, NO_CONTEXT)
