"""Has modules of the standard library run at their first use instead of at their import.

    import ssl --> a module without content --- ssl.SSLContext ---> its code runs, once

Of what others import, asyncio above all, a command that makes one call and ends uses little. The
import statements stay where they are. `from ssl import SSLContext` is a use.
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
    """Within, they are deferred where nobody has imported them yet."""
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)


class _Deferred(ModuleType):
    """A module whose code has not run, or runs just now in another thread."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # else it is only just being imported
            with _running:
                _run(self)
        return ModuleType.__getattribute__(self, name)


class _Loader:
    def __init__(self, usual: Any) -> None:
        self.usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """At the first use: see `_run`."""


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
        return  # it runs just now, and lacks what was looked for
    spec.loader = module.__loader__ = loader.usual
    try:
        loader.usual.exec_module(module)
    except BaseException:
        spec.loader = loader  # whoever looks next tries again
        raise
    module.__class__ = ModuleType
