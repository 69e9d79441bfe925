"""What a host, or an MCP server, said of its tools when it was first seen.

Tools can be listed without starting anything, and a host that describes a tool differently
later is noticed: what a person has seen and approved is not exchanged under its name.

    never seen              -> it may be learned: the first use
    as it was written       -> its tools are offered
    anything else           -> `PinDoubt`: nothing is offered, nor learned, until a person has
                               accepted it (`callgate hosts reload`, `callgate mcp approve`)
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.core.json_schema.schemas import canonical_json

LARGEST = 1024 * 1024
"""Bytes that a host may say of itself: every command reads them."""


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    schemas: list[dict[str, Any]]
    required_tags: list[str] = []
    tags: list[str] = []
    ui_elements: list[dict[str, Any]] = []


class PinDoubt(ToolRegistrationError):
    """What is pinned for a host cannot be gone by."""

    def __init__(
        self,
        host: str,
        problem: str,
        pinned: Pinned | None = None,
        accept: str = "callgate hosts reload",
    ) -> None:
        super().__init__(f"{problem}: its tools are not offered before {accept} {host}")
        self.problem = problem
        self.pinned = pinned
        """What was pinned, where that is known."""


class Pins(Protocol):
    """Where they are kept; `config.pins` implements it."""

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        """None where the host was never seen. Raises `PinDoubt`."""
        ...

    def write(self, name: str, pinned: Pinned) -> None: ...
    def write_first(self, name: str, pinned: Pinned) -> None:
        """Unless something is written, whatever it is: who was faster has been believed."""
        ...

    def known(self) -> list[str]:
        """The hosts that were seen, in the order in which they were."""
        ...

    def log_path(self, name: str) -> str: ...


def fingerprint(schema: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(schema)).hexdigest()
