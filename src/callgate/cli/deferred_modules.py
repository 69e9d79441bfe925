"""Lazy import of standard library modules: their code runs at first use, not at import.

    import ssl --> a module without content --- ssl.SSLContext ---> its code runs, once

A command that makes one call uses few of the modules that asyncio and others import. Import
statements do not change. `from ssl import SSLContext` counts as a use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

_NAMES = frozenset(
    {
        "asyncio.sslproto",
        "ipaddress",
        "linecache",
        "locale",
        "random",
        "secrets",
        "ssl",
        "textwrap",
        "tomllib",
        "urllib.parse",
    }
)
_running = RLock()


@contextmanager
def deferred_modules() -> Iterator[None]:
    """Defer these modules inside the `with` block, unless they are already imported."""
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)


class _Deferred(ModuleType):
    """Module whose code has not run yet, or is running in another thread."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # otherwise its import has not finished
            with _running:
                _run(self)
        return ModuleType.__getattribute__(self, name)


class _Loader:
    def __init__(self, usual: Any) -> None:
        self.usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `_run` executes the module at its first use."""


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _NAMES else None
        if spec is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # has what is called
        return spec


def _run(module: ModuleType) -> None:
    spec: Any = module.__spec__
    loader = spec.loader
    if not isinstance(loader, _Loader):
        return  # its code is running, and has not defined the attribute yet
    spec.loader = module.__loader__ = loader.usual
    try:
        loader.usual.exec_module(module)
    except BaseException:
        spec.loader = loader  # the next use tries again
        raise
    module.__class__ = ModuleType
