"""Loads a module when it is first needed, at the price of that module alone."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def load(name: str) -> Any:
    """`importlib.import_module`, without `importlib`."""
    __import__(name)
    return sys.modules[name]
