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
    function: Callable[..., Awaitable[int]]
    arguments: dict[str, Any]
    expected: int


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
