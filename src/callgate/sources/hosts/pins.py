"""What a host said of its tools when it was first seen.

Tools can be listed without starting anything, and a host that describes a tool differently
later is noticed: what a person has seen and approved is not exchanged under its name.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

from callgate.core.schemas import canonical_json


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    schemas: list[dict[str, Any]]
    required_tags: list[str] = []
    tags: list[str] = []
    ui_elements: list[dict[str, Any]] = []


class Pins(Protocol):
    """Where they are kept; `config.pins` implements it."""

    def read(self, name: str, command: tuple[str, ...]) -> Pinned | None:
        """None where nothing is pinned for this command, or it cannot be read."""
        ...

    def write(self, name: str, pinned: Pinned) -> None: ...
    def log_path(self, name: str) -> str: ...


def fingerprint(schema: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(schema)).hexdigest()
