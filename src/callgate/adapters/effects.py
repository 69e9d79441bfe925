"""What the tools of a framework can do, as the program that brings them declares it.

    effects={"search": "read", "send_mail": "network", "wipe": {"writes-files", "destructive"}}
    effects=lambda name: "read" if name.startswith("get_") else None

A tool that nobody declares counts as the worst there is: it is asked about, and never read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import msgspec

from callgate.core.effects import Capability, SideEffects

Effect = SideEffects | str | Collection[Capability | str]
Effects = Mapping[str, Effect] | Callable[[str], Effect | None]


class DeclaredEffect(msgspec.Struct, frozen=True):
    """One of the two."""

    side_effects: SideEffects | None = None
    capabilities: frozenset[Capability] = frozenset()


UNKNOWN = DeclaredEffect(SideEffects.EXECUTE)


def read_effect(effect: Effect) -> DeclaredEffect:
    """A class, or a set of capabilities. `ValueError` says what is wrong with it."""
    if isinstance(effect, str):
        return DeclaredEffect(SideEffects.parse(effect))
    if not isinstance(effect, Collection) or not effect:
        raise ValueError(f"an effect is a class or a set of capabilities, not {effect!r}")
    return DeclaredEffect(capabilities=frozenset(Capability(each) for each in effect))


def effect_reader(
    effects: Effects | None, known: Mapping[str, Effect] = MappingProxyType({})
) -> Callable[[str], DeclaredEffect]:
    """What is declared of a tool, by its name; else what is `known` of the framework's own."""
    table = {name: read_effect(effect) for name, effect in known.items()}
    if effects is None or isinstance(effects, Mapping):
        table |= {name: read_effect(effect) for name, effect in (effects or {}).items()}
        return lambda name: table.get(name, UNKNOWN)
    if not callable(effects):
        raise ValueError(f"effects is a mapping or a function, not {type(effects).__name__}")

    def ask(name: str) -> DeclaredEffect:
        effect = effects(name)
        return table.get(name, UNKNOWN) if effect is None else read_effect(effect)

    return ask
