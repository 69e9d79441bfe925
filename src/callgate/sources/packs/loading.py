"""Imports what an entry point names, without a look at what is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_entry(value: str) -> Any:
    """What `module:attribute` names: this runs the package's code, which may raise anything."""
    module, _, attribute = value.partition(":")
    return getattr(import_module(module), attribute)
