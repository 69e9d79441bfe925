"""From settings to the tools of the catalogue: the web, memory, documents.

Loaded once one of them is looked at. Only tables are loaded here; what a tool does is loaded when
it is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.config.places import Home
from callgate.config.schema import Settings
from callgate.core.sessions import Session
from callgate.core.tools import ToolFactory
from callgate.runtime import Runtime
from callgate.tools import catalogue
from callgate.tools.documents import catalogue as documents
from callgate.tools.loading import factories
from callgate.tools.memory import catalogue as memory
from callgate.tools.shares import Documents, Embedder, Notes
from callgate.tools.tables import USUAL_VARIABLES, DocumentsTable, WebTable
from callgate.tools.web import catalogue as web_tools
from callgate.tools.web.parts import Web

if TYPE_CHECKING:
    from callgate.core.models import Key


def register_catalogue(runtime: Runtime, home: Home, settings: Settings) -> None:
    """Known to everyone, and offered where what they need is configured."""
    registry = runtime.dispatcher.registry
    web = Web(settings.web, lambda: _search_key(home, settings.web))
    kept = Documents(home.path, settings.documents, _embedder(home, settings.documents))
    made: list[ToolFactory] = [
        *factories(web_tools.CATALOGUE, web),
        *factories(memory.CATALOGUE, Notes(home.path, settings.memory)),
        *factories(documents.CATALOGUE, kept),
        *factories(catalogue.FILES, kept),
        *factories(catalogue.CUSTOM, runtime.call),
    ]
    for factory in made:
        runtime.register(factory)
    for row in (*catalogue.FILES, *catalogue.CUSTOM):
        registry.unlist(row.definition.name)

    def why_not(session: Session) -> str | None:
        return web.why_no_search()

    registry.offer_where("web_search", why_not)


def _embedder(home: Home, table: DocumentsTable) -> Callable[[], Embedder] | None:
    """What opens it; nothing of it is loaded before."""
    named = table.embeddings
    if named is None:
        return None

    def opened() -> Embedder:
        from callgate.wiring_embeddings import open_embedder  # lazy: heavy, with the first search  # noqa: PLC0415

        return open_embedder(home, named)

    return opened


def _search_key(home: Home, table: WebTable) -> Key | None:
    from callgate.config.keys import find_service_key  # lazy: only where a service wants one  # noqa: PLC0415

    name = str(table.search)
    return find_service_key(
        name, home, os.environ, key_env=table.key_env, usual=USUAL_VARIABLES.get(name)
    )
