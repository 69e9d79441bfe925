"""From a signature to a schema: each type that can be said, and each that cannot."""

from __future__ import annotations

import datetime
import enum
import pathlib
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    Union,
)

import annotated_types
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.errors import ToolRegistrationError
from callgate.core.schemas import ArgumentSchema, check_subset
from callgate.core.tools import ToolContext
from callgate.sources.functions import tool
from tests.kernel.sources.deriving import ALLOWED, function_with, keywords, schema_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    TEXT = "a"
    NUMBER = 1


class Empty(enum.Enum):
    pass


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


@dataclass
class Point:
    """Where something is.

    Attributes:
        x: To the right.
    """

    x: int
    y: Annotated[int, "Upwards"] = 0
    tags: list[str] = field(default_factory=list)
    hidden: int = field(default=1, init=False)


@dataclass
class Line:
    start: Point
    colour: Colour | None = None


@dataclass
class Node:
    children: list[Node]


@dataclass
class Broken:
    a: NoSuchName  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Holder:
    where: pathlib.Path


class Options(TypedDict, total=False):
    name: Required[str]
    size: int


class Entry(TypedDict):
    name: str
    size: NotRequired[int]


class Item(msgspec.Struct, rename="camel"):
    item_name: str
    amount: int = 1


class Row(msgspec.Struct, array_like=True):
    a: int


class Plain:
    pass

    def __repr__(self) -> str:  # the same in every process that collects the tests
        return "Plain()"


UserId = NewType("UserId", int)

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "description": "To the right."},
        "y": {"type": "integer", "description": "Upwards", "default": 0},
        "tags": {"type": "array", "items": STRING},
    },
    "required": ["x"],
}

SAYABLE: list[tuple[Any, dict[str, Any]]] = [
    (str, STRING),
    (int, INTEGER),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (Any, {}),
    (object, {}),
    (list, {"type": "array"}),
    (list[Any], {"type": "array"}),
    (list[int], {"type": "array", "items": INTEGER}),
    (Sequence[list[str]], {"type": "array", "items": {"type": "array", "items": STRING}}),
    (tuple, {"type": "array"}),
    (tuple[str, ...], {"type": "array", "items": STRING}),
    (tuple[int, int], {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}),
    (dict, {"type": "object", "additionalProperties": True}),
    (dict[str, Any], {"type": "object", "additionalProperties": True}),
    (Mapping[str, object], {"type": "object", "additionalProperties": True}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
    (Literal[True], {"type": "boolean", "enum": [True]}),
    (Literal["a", 1, None], {"type": ["string", "integer", "null"], "enum": ["a", 1, None]}),
    (Colour, {"type": "string", "enum": ["red", "blue"]}),
    (Level, {"type": "integer", "enum": [1, 2]}),
    (Optional[str], {"type": ["string", "null"]}),  # noqa: UP045
    (str | None, {"type": ["string", "null"]}),
    (None | str, {"type": ["string", "null"]}),
    (Literal["a"] | None, {"type": ["string", "null"], "enum": ["a", None]}),
    (Literal["a", None] | None, {"type": ["string", "null"], "enum": ["a", None]}),
    (Literal["a"] | Literal["b", 2], {"type": ["string", "integer"], "enum": ["a", "b", 2]}),
    (Colour | None, {"type": ["string", "null"], "enum": ["red", "blue", None]}),
    (list[int] | None, {"type": ["array", "null"], "items": INTEGER}),
    (Any | None, {}),
    (int | str, {"type": ["integer", "string"]}),
    (Union[int, float], {"type": "number"}),  # noqa: UP007
    (int | float | None, {"type": ["number", "null"]}),
    (str | list[str], {"type": ["string", "array"], "items": STRING}),
    (Annotated[int, msgspec.Meta(ge=1)] | str, {"type": ["integer", "string"], "minimum": 1}),
    (Point, POINT),
    (Point | None, {**POINT, "type": ["object", "null"]}),
    (list[Point], {"type": "array", "items": POINT}),
    (
        Line,
        {
            "type": "object",
            "properties": {
                "start": POINT,
                "colour": {
                    "type": ["string", "null"],
                    "enum": ["red", "blue", None],
                    "default": None,
                },
            },
            "required": ["start"],
        },
    ),
    (
        Options,
        {"type": "object", "properties": {"name": STRING, "size": INTEGER}, "required": ["name"]},
    ),
    (
        Entry,
        {"type": "object", "properties": {"name": STRING, "size": INTEGER}, "required": ["name"]},
    ),
    (
        Item,
        {
            "type": "object",
            "properties": {"itemName": STRING, "amount": {"type": "integer", "default": 1}},
            "required": ["itemName"],
        },
    ),
    (pathlib.Path, STRING),
    (list[pathlib.Path], {"type": "array", "items": STRING}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (datetime.date, {"type": "string", "format": "date"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (UserId, INTEGER),
    (Annotated[str, "Who it is"], {"type": "string", "description": "Who it is"}),
    (Annotated[str, Plain()], STRING),
    (
        Annotated[int, msgspec.Meta(ge=1, le=9, description="How many", title="N", examples=[3])],
        {
            "type": "integer",
            "minimum": 1,
            "maximum": 9,
            "description": "How many",
            "title": "N",
            "examples": [3],
        },
    ),
    (Annotated[int, msgspec.Meta(gt=0, lt=10)], {"type": "integer", "minimum": 1, "maximum": 9}),
    (Annotated[float, msgspec.Meta(ge=0.5)], {"type": "number", "minimum": 0.5}),
    (
        Annotated[str, msgspec.Meta(min_length=1, max_length=5, pattern="^a")],
        {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^a"},
    ),
    (
        Annotated[list[int], annotated_types.Len(1, 3)],
        {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3},
    ),
    (
        Annotated[int | None, annotated_types.Interval(ge=0, lt=10)],
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    ),
    (
        Annotated[int, pydantic.Field(ge=3, description="Three or more")],
        {"type": "integer", "minimum": 3, "description": "Three or more"},
    ),
    (
        Annotated[str, pydantic.Field(pattern="^b", max_length=2)],
        {"type": "string", "pattern": "^b", "maxLength": 2},
    ),
]

UNSAYABLE: list[Any] = [
    bytes,
    complex,
    set[int],
    Plain,
    Callable[[], None],
    typing.TypeVar("T"),
    dict[str, int],
    dict[int, Any],
    tuple[int, str],
    Mixed,
    Empty,
    Bits,
    Broken,
    [int],
    5,
    Literal[b"x"],
    Literal[Colour.RED],
    Node,
    Row,
    Holder,
    list[list[pathlib.Path]],
    list[bytes],
    dict[str, Any] | Point,
    int | Literal["a"],
    list[int] | list[str],
    Annotated[int, msgspec.Meta(ge=1)] | float,
    str | Colour,
    str | datetime.date,
    pathlib.Path | list[pathlib.Path],
    Annotated[float, msgspec.Meta(gt=0)],
    Annotated[int, msgspec.Meta(multiple_of=2)],
    Annotated[str, msgspec.Meta(extra_json_schema={"x": 1})],
    Annotated[str, annotated_types.Ge(1)],
    Annotated[dict[str, Any], annotated_types.MinLen(1)],
    Annotated[int, annotated_types.MinLen(1)],
    Annotated[int, annotated_types.Gt(0.5)],
    Annotated[int | str, annotated_types.Ge(1)],
    Annotated[int, annotated_types.Timezone(None)],
    Annotated[int, annotated_types.MultipleOf(2)],
    Annotated[int, pydantic.Field(pattern="^a")],
    Annotated[int, annotated_types.Predicate(bool)],
    Annotated[int, pydantic.AfterValidator(abs)],
    "NoSuchName",
    "not python",
]


@pytest.mark.parametrize(("annotation", "expected"), SAYABLE, ids=str)
def test_a_type_becomes_its_schema(annotation: Any, expected: dict[str, Any]) -> None:
    assert schema_of(annotation) == expected


@pytest.mark.spec("S4-05", "S4-07")
@pytest.mark.parametrize("annotation", UNSAYABLE, ids=str)
def test_a_type_that_cannot_be_said_is_refused_with_its_parameter(annotation: Any) -> None:
    with pytest.raises(ToolRegistrationError, match="probe: parameter thing"):
        tool(function_with(annotation), side_effects="none")


@pytest.mark.parametrize(
    ("annotation", "place"),
    [(Node, r"thing\.children\[\]"), (Holder, r"thing\.where"), (list[bytes], r"thing\[\]")],
)
def test_a_refusal_names_the_field_inside_the_parameter(annotation: Any, place: str) -> None:
    with pytest.raises(ToolRegistrationError, match=f"parameter {place}:"):
        tool(function_with(annotation), side_effects="none")


@pytest.mark.spec("S4-05", "S4-06", "S4-07", "S4-08", "S4-09")
@pytest.mark.parametrize("annotation", [each for each, _ in SAYABLE], ids=str)
def test_every_derived_schema_stays_in_the_subset(annotation: Any) -> None:
    schema = tool(function_with(annotation), side_effects="none").definition.input_schema
    assert keywords(schema) <= ALLOWED
    assert schema["type"] == "object"
    check_subset(schema, "probe")
    ArgumentSchema(schema, "probe")


LEAVES = st.sampled_from([str, int, float, bool, Colour, Literal["a", 1], datetime.date, Point, Any])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),  # type: ignore[valid-type]
        inner.map(lambda t: tuple[t, ...]),  # type: ignore[valid-type]
        inner.map(lambda t: Optional[t]),  # noqa: UP045
        inner.map(lambda t: Annotated[t, "words"]),
    ),
    max_leaves=4,
)


@pytest.mark.spec("S4-05")
@given(NESTED)
def test_every_nesting_of_sayable_types_stays_in_the_subset(annotation: Any) -> None:
    schema = tool(function_with(annotation), side_effects="none").definition.input_schema
    assert keywords(schema) <= ALLOWED
    ArgumentSchema(schema, "probe")


def test_defaults_are_said_as_json_and_free_the_parameter() -> None:
    def probe(
        text: str = "x",
        ratio: float = 0.5,
        none: str | None = None,
        colour: Colour = Colour.BLUE,
        point: Point = Point(1, 2),  # noqa: B008
        path: pathlib.Path = pathlib.Path("a/b"),
        pair: tuple[int, int] = (1, 2),
    ) -> None: ...

    definition = tool(probe, side_effects="none").definition
    assert "required" not in definition.input_schema
    properties = definition.input_schema["properties"]
    assert {name: each["default"] for name, each in properties.items()} == {
        "text": "x",
        "ratio": 0.5,
        "none": None,
        "colour": "blue",
        "point": {"x": 1, "y": 2, "tags": []},
        "path": "a/b",
        "pair": [1, 2],
    }


def test_a_default_that_its_schema_would_refuse_is_left_to_the_function() -> None:
    def probe(
        text: str = None,  # type: ignore[assignment]  # noqa: RUF013
        number: float = float("inf"),
        count: Annotated[int, msgspec.Meta(ge=1)] = 0,
        marker: Any = object(),
        when: datetime.datetime = datetime.datetime(2001, 2, 3),  # no time zone
    ) -> None: ...

    schema = tool(probe, side_effects="none").definition.input_schema
    assert schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "number"},
            "count": {"type": "integer", "minimum": 1},
            "marker": {},
            "when": {"type": "string", "format": "date-time"},
        },
    }


def positional(a: int, /) -> None: ...
def variadic(*rest: int) -> None: ...
def open_ended(**rest: int) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def]
def two_contexts(one: ToolContext, a: ToolContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (positional, "a"),
        (variadic, "rest"),
        (open_ended, "rest"),
        (bare, "a"),
        (two_contexts, "a"),
    ],
)
def test_a_parameter_that_no_call_can_fill_is_refused_by_name(function: Any, parameter: str) -> None:
    with pytest.raises(ToolRegistrationError, match=f"{function.__name__}: parameter {parameter}:"):
        tool(function, side_effects="none")


def test_a_method_is_refused_until_it_is_bound() -> None:
    class Counter:
        def add(self, amount: int) -> int:
            return amount

    with pytest.raises(ToolRegistrationError, match="add: parameter self:"):
        tool(Counter.add, side_effects="none")
    bound = tool(Counter().add, side_effects="none").definition.input_schema
    assert bound["properties"] == {"amount": INTEGER}


def test_a_context_is_found_by_its_type_and_stays_out_of_the_schema() -> None:
    def probe(a: int, whatever: ToolContext | None, b: str = "") -> None: ...

    assert list(tool(probe, side_effects="none").definition.input_schema["properties"]) == ["a", "b"]


def test_an_unresolvable_return_type_does_no_harm() -> None:
    def probe(a: int) -> NoSuchType: ...  # type: ignore[name-defined]  # noqa: F821

    assert tool(probe, side_effects="none").definition.input_schema["required"] == ["a"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("source", "targets", "cwd")),
        ({"path_params": ["name"]}, ("name", "source", "targets")),
        ({"requires_workspace": False}, ("source", "targets")),
    ],
)
def test_path_parameters_are_those_of_type_path_and_those_named_or_found(
    options: Any, expected: tuple[str, ...]
) -> None:
    def probe(source: pathlib.Path, targets: list[pathlib.Path], cwd: str, name: str = "") -> None: ...

    found = tool(probe, side_effects="read", **options).definition.path_params
    assert found is not None
    assert set(found) == set(expected)


def test_without_a_path_type_the_dispatcher_finds_path_parameters_by_name() -> None:
    def probe(path: str) -> None: ...

    assert tool(probe, side_effects="read").definition.path_params is None


def test_text_input_has_the_schema_of_one_text() -> None:
    def probe(script: Annotated[str, "What to run"], context: ToolContext) -> None: ...

    definition = tool(probe, side_effects="none", input="text").definition
    assert definition.input == "text"
    assert definition.input_schema == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }


def no_text(context: ToolContext) -> None: ...
def a_number(a: int) -> None: ...
def two_texts(a: str, b: str) -> None: ...
def a_choice(a: Literal["x"]) -> None: ...
def a_path(a: pathlib.Path) -> None: ...
def text_and_path(a: str, b: pathlib.Path) -> None: ...


@pytest.mark.parametrize("function", [no_text, a_number, two_texts, a_choice, a_path, text_and_path])
def test_text_input_needs_exactly_one_text_parameter(function: Any) -> None:
    with pytest.raises(ToolRegistrationError, match=function.__name__):
        tool(function, side_effects="none", input="text")
