"""The two calls that everyone is asked to make: two numbers, and a nested order of 2 KB.

The order is made of dataclasses, which every contestant checks and builds in its own way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass
class Address:
    street: str
    city: str
    postal_code: str
    country: str


@dataclass
class Customer:
    name: str
    addresses: list[Address]
    loyalty_points: int
    newsletter: bool


@dataclass
class Line:
    sku: str
    title: str
    quantity: int
    unit_price: float
    colours: list[str]


@dataclass
class Order:
    number: str
    customer: Customer
    lines: list[Line]
    remarks: list[str]


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def count_pieces(order: Order) -> int:
    """Count the pieces in an order."""
    return sum(line.quantity for line in order.lines)


class Case(NamedTuple):
    name: str
    function: Callable[..., Awaitable[Any]]
    arguments: dict[str, Any]
    expected: Any


def _order() -> dict[str, Any]:
    address = {"street": "12 Harbour Road", "city": "Bergen", "postal_code": "5003"}
    return {
        "number": "2024-000731",
        "customer": {
            "name": "Ada Berg",
            "addresses": [{**address, "country": "Norway"}, {**address, "country": "Denmark"}],
            "loyalty_points": 1_250,
            "newsletter": False,
        },
        "lines": [
            {
                "sku": f"SKU-{number:05d}",
                "title": f"Enamelled kitchen lamp, model {number}",
                "quantity": number + 1,
                "unit_price": 19.95 + number,
                "colours": ["white", "sea green", "brick red"],
            }
            for number in range(11)
        ],
        "remarks": ["Leave it with the neighbour.", "Ring twice.", "No plastic wrapping, please."],
    }


CASES = {
    "add": Case("add", add, {"a": 19, "b": 23}, 42),
    "order": Case("order", count_pieces, {"order": _order()}, 66),
}


def _with_remark(remark: str) -> dict[str, Any]:
    order = _order()
    return {"order": {**order, "remarks": [*order["remarks"], remark]}}


_PROSE = "The lamp stands next to the window, and nobody has switched it on since the evening. "
PROSE = (_PROSE * 50)[:4_096]
with open(__file__, encoding="utf-8") as _file:
    SOURCE = (_file.read() * 2)[:4_096]


async def read_prose() -> str:
    """Return a text."""
    return PROSE


async def read_source() -> str:
    """Return a program."""
    return SOURCE


EVERYDAY = {
    "add": CASES["add"],
    "order": CASES["order"],
    "order with an address": Case(
        "order with an address", count_pieces, _with_remark("Write to ada@example.com."), 66
    ),
    "order with a suspicious word": Case(
        "order with a suspicious word", count_pieces, _with_remark("The key is at the door."), 66
    ),
    "4 KB of prose": Case("4 KB of prose", read_prose, {}, PROSE),
    "4 KB of Python source": Case("4 KB of Python source", read_source, {}, SOURCE),
}
"""Calls as agents make them, beside the fastest peer."""


async def nothing() -> None:
    """What `settle` is for those who leave no work behind."""


class Prepared(NamedTuple):
    """A contestant that is ready to be called."""

    call: Callable[[], Awaitable[Any]]
    value: Callable[[Any], Any] = lambda result: result
    """The function's own value, out of what `call` gave."""
    settle: Callable[[], Awaitable[None]] = nothing
    """Finish what the calls left to be done later; the clock is still running."""


Setup = Callable[[Case, AsyncExitStack], Awaitable[Prepared]]
