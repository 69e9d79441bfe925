"""What a package of tools gives, and what it is given.

entry point (`callgate.tools`) -> function(PackContext) -> Pack
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from callgate.core.commands import Launcher
    from callgate.core.messages import Speaker
    from callgate.core.models import Key
    from callgate.core.sessions import Session
    from callgate.core.tools import ToolFactory


class Embedder(Protocol):
    """Makes vectors of texts. `models.embeddings` implements it; failures are `ModelError`s."""

    name: str
    """Vectors of one name can be compared, and no others."""
    host: str

    async def embed(
        self, texts: Sequence[str], retries: int | None = None
    ) -> list[list[float]]: ...

    async def close(self) -> None: ...


class FindKey(Protocol):
    def __call__(self, service: str, *, key_env: str | None, usual: str | None) -> Key | None:
        """The key of a service: from the variable `key_env`, from `callgate keys set SERVICE`,
        or from the variable `usual`. Raises `ModelError` where one is there and cannot be used."""


class PackContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a package is given of the runtime."""

    home: str
    """The directory of settings and records. What a package keeps lies in a directory of its
    own in it."""
    settings: Any
    """Of this package: `[packs.settings.NAME]`; for those that we ship a table of their own."""
    find_key: FindKey
    open_embedder: Callable[[Any], Embedder]
    """Of an `EmbeddingsTable`."""
    launcher: Callable[[], Launcher]
    """Starts programs of the package itself, without a sandbox. A tool starts what a call wants
    with the launcher of that call."""


class PackTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool with more to say of it than its factory does."""

    factory: ToolFactory
    why_not: Callable[[Session], str | None] | None = None
    """Why a session cannot use it; None where it can."""
    listed: bool = True
    """False: nobody is told of it, and whoever knows its name may call it."""


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """What a package gives."""

    tools: Sequence[ToolFactory | PackTool] = ()
    prompt: Callable[[Session], str] | None = None
    """What a model is told with the instructions of each turn."""
    speaker: Callable[[], Speaker] | None = None
    """Makes heard what a model says aloud, where `[agent] speak` is on."""
    close: Callable[[], Awaitable[None]] | None = None
    """Called once, at the end of a runtime that used the package."""


def load_entry(value: str) -> Any:
    """What `module:attribute` names: this runs the package's code, which may raise anything."""
    module, _, attribute = value.partition(":")
    return getattr(import_module(module), attribute)
