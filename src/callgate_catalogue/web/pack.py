"""The web tools of a runtime. `web_search` is offered where a service for it is configured."""

from __future__ import annotations

from callgate import Session
from callgate.packs.settings import USUAL_VARIABLES, WebTable
from callgate.packs.tools import Key, Pack, PackContext, PackTool, factories
from callgate_catalogue.web.catalogue import CATALOGUE
from callgate_catalogue.web.dependencies import Web


def pack(context: PackContext) -> Pack:
    table: WebTable = context.settings
    web = Web(table, lambda: search_key(context))

    def why_no_search(session: Session) -> str | None:
        return web.why_no_search()

    tools = [
        PackTool(
            factory=factory,
            why_not=why_no_search if row.definition.name == "web_search" else None,
        )
        for row, factory in zip(CATALOGUE, factories(CATALOGUE, web), strict=True)
    ]
    return Pack(tools=tools)


def search_key(context: PackContext) -> Key | None:
    """The key of the service that searches."""
    table: WebTable = context.settings
    name = str(table.search)
    return context.find_key(name, key_env=table.key_env, usual=USUAL_VARIABLES.get(name))
