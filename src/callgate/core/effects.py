"""Effects of a tool: a set of capabilities, and the class derived from it.

The set is canonical. The class (`side_effects` of a tool) is the highest effect that the set
allows: none < read < write < network < execute.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class SideEffects(StrEnum):
    NONE = "none"
    READ = "read"
    WRITE = "write"
    NETWORK = "network"
    EXECUTE = "execute"

    @property
    def rank(self) -> int:
        return _RANK[self]

    @property
    def has_effects(self) -> bool:
        """Whether a call of this class changes something: write and above."""
        return _RANK[self] >= _RANK[SideEffects.WRITE]

    @classmethod
    def parse(cls, text: str) -> SideEffects:
        """Read a class in any case (settings may write `WRITE`)."""
        try:
            return cls(text.lower())
        except ValueError:
            known = ", ".join(cls)
            raise ValueError(f"unknown side effect class {text!r}; known: {known}") from None


_RANK = {effect: rank for rank, effect in enumerate(SideEffects)}


class Capability(StrEnum):
    PURE = "pure"
    READ_ONLY = "read-only"
    WRITES_FILES = "writes-files"
    MUTATES_EXTERNAL = "mutates-external"
    CONTROLS_BROWSER = "controls-browser"
    STARTS_PROCESS = "starts-process"
    ACCESSES_NETWORK = "accesses-network"
    DESTRUCTIVE = "destructive"


_DERIVATION = (
    (frozenset({Capability.STARTS_PROCESS}), SideEffects.EXECUTE),
    (frozenset({Capability.MUTATES_EXTERNAL, Capability.CONTROLS_BROWSER}), SideEffects.NETWORK),
    (frozenset({Capability.WRITES_FILES}), SideEffects.WRITE),
    (frozenset({Capability.READ_ONLY, Capability.ACCESSES_NETWORK}), SideEffects.READ),
    (frozenset({Capability.PURE}), SideEffects.NONE),
)

_IMPLIED = {
    SideEffects.NONE: frozenset({Capability.PURE}),
    SideEffects.READ: frozenset({Capability.READ_ONLY}),
    SideEffects.WRITE: frozenset({Capability.WRITES_FILES}),
    SideEffects.NETWORK: frozenset({Capability.MUTATES_EXTERNAL, Capability.ACCESSES_NETWORK}),
    SideEffects.EXECUTE: frozenset({Capability.STARTS_PROCESS}),
}


def derive(capabilities: Iterable[Capability]) -> SideEffects | None:
    """Return the class of a capability set, or None if the set declares none."""
    declared = frozenset(capabilities)
    for needed, effect in _DERIVATION:
        if needed & declared:
            return effect
    return None


def implied(effect: SideEffects) -> frozenset[Capability]:
    """Return the capabilities of a tool that declares only its class."""
    return _IMPLIED[effect]
