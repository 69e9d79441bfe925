"""Pydantic models as parameters: their schemas said in the subset, their instances built."""

from __future__ import annotations

import enum
import pathlib
import subprocess
import sys
from datetime import date
from typing import Annotated, Any, Literal

import pydantic
import pytest

from callgate.core.errors import ToolRegistrationError, ToolValidationError
from callgate.sources.functions import tool
from callgate.sources.signatures import as_output
from tests.kernel.sources.deriving import ALLOWED, function_with, keywords, schema_of


class Size(enum.Enum):
    S = "s"
    L = "l"


class Owner(pydantic.BaseModel):
    """Who has it."""

    name: str
    born: date | None = None


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    owner: Owner
    watchers: list[Owner] = []
    size: Size = Size.S
    kind: Literal["a"] = "a"
    count: Annotated[int, pydantic.Field(gt=0, le=9, description="How many")]
    note: str | int | None = None
    extra: dict[str, Any] = {}
    wrong: int = None  # type: ignore[assignment]


class Nested(pydantic.BaseModel):
    children: list[Nested]


class WithPath(pydantic.BaseModel):
    where: pathlib.Path


class WithMap(pydantic.BaseModel):
    where: dict[str, int]


class WithTuple(pydantic.BaseModel):
    where: tuple[int, str]


class WithSet(pydantic.BaseModel):
    where: set[int]


class WithUnion(pydantic.BaseModel):
    where: Owner | WithMap


class WithFloat(pydantic.BaseModel):
    where: pydantic.PositiveFloat


class WithAnything(pydantic.BaseModel):
    where: object = pydantic.Field(json_schema_extra={"not": {}})


class WithOddItems(pydantic.BaseModel):
    where: list[int] = pydantic.Field(json_schema_extra={"items": False})


class WithoutSchema(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    where: subprocess.Popen  # type: ignore[type-arg]


@pydantic.dataclasses.dataclass
class Odd:
    a: int


OWNER = {
    "type": "object",
    "description": "Who has it.",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": ["string", "null"], "format": "date", "default": None},
    },
    "required": ["name"],
}


def test_references_and_unions_are_said_without_them() -> None:
    schema = schema_of(Order)
    assert schema == {
        "type": "object",
        "properties": {
            "owner": OWNER,
            "watchers": {"type": "array", "items": OWNER, "default": []},
            "size": {"type": "string", "enum": ["s", "l"], "default": "s"},
            "kind": {"type": "string", "enum": ["a"], "default": "a"},
            "count": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many"},
            "note": {"type": ["string", "integer", "null"], "default": None},
            "extra": {"type": "object", "additionalProperties": True, "default": {}},
            "wrong": {"type": "integer"},
        },
        "required": ["owner", "count"],
    }
    assert keywords(schema) <= ALLOWED


@pytest.mark.parametrize(
    "model",
    [WithPath, WithMap, WithTuple, WithSet, WithUnion, WithFloat, WithAnything, WithOddItems],
)
def test_a_field_that_cannot_be_said_is_refused_by_name(model: Any) -> None:
    with pytest.raises(ToolRegistrationError, match=r"parameter thing\.where"):
        tool(function_with(model), side_effects="none")


@pytest.mark.parametrize("model", [Nested, Odd, WithoutSchema, list[Nested]])
def test_a_model_that_cannot_be_said_at_all_is_refused(model: Any) -> None:
    with pytest.raises(ToolRegistrationError, match="parameter thing"):
        tool(function_with(model), side_effects="none")


async def test_the_function_gets_instances() -> None:
    seen: list[Any] = []

    @tool(side_effects="none")
    async def probe(order: Order, owners: list[Owner], owner: Owner | None = None) -> None:
        seen.extend([order, owners, owner])

    ann = {"name": "Ann", "born": "2001-02-03"}
    order = {"owner": ann, "count": 2, "size": "l"}
    await probe().execute({"order": order, "owners": [ann], "owner": None}, None)  # type: ignore[arg-type]
    built = Owner(name="Ann", born=date(2001, 2, 3))
    assert seen == [Order(owner=built, count=2, size=Size.L), [built], None]


async def test_what_only_the_model_refuses_is_a_validation_error_naming_the_place() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("odd")
            return n

    def probe(numbers: list[Even]) -> None: ...

    probe.__annotations__["numbers"] = list[Even]
    with pytest.raises(ToolValidationError) as refused:
        await tool(probe, side_effects="none")().execute({"numbers": [{"n": 1}]}, None)  # type: ignore[arg-type]
    (line,) = refused.value.validation_errors
    assert line.startswith("numbers: n: ")
    assert "$[0]" in line
    assert "http" not in line


def test_a_returned_model_is_data() -> None:
    output = as_output({"owner": Owner(name="Ann", born=date(2001, 2, 3))})
    assert output.value == {"owner": {"name": "Ann", "born": "2001-02-03"}}


def test_pydantic_is_not_loaded_for_those_who_do_not_use_it() -> None:
    script = "import sys, callgate.sources.functions; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
