"""Remote workers: which are connected, to this server or to another that shares the store."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from callgate.sources.workers.directory import WorkerEntry, connected_workers
from callgate.sources.workers.links import WorkerLink
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.routes.values import Value


class Worker(Value, frozen=True, kw_only=True):
    pool: str
    name: str
    generation: int
    """Grows with each connection: a result of an older one does not count."""
    server: str
    """The server that it is connected to."""
    here: bool
    """Whether that is this one, which then knows the last two."""
    version: str
    platform: str
    workspaces: list[str]
    tools: list[str]
    slots: int
    sandbox: str
    connected_at: float
    calls: int | UnsetType = UNSET
    """That run there."""
    silent_s: float | UnsetType = UNSET
    """Since anything was heard of it."""


class WorkerList(Value, frozen=True, kw_only=True):
    workers: list[Worker]


async def list_workers(context: Context, request: Request) -> WorkerList:
    store = await context.runtime.store()
    links = [] if context.workers is None else context.workers().pools.links()
    here = {(each.identity.key, each.generation): each for each in links}
    urls = await _urls(context)
    return WorkerList(
        workers=[
            _worker(
                each,
                here.get((f"{each.pool}/{each.name}", each.generation)),
                urls.get(each.server, each.server),
            )
            for each in await connected_workers(store)
        ]
    )


async def _urls(context: Context) -> dict[str, str]:
    """Of the servers, by owner."""
    if context.servers is None:
        return {}
    own = {(await context.runtime.store()).owner: context.names.servers_url}
    return own | {each.owner: each.url for each in await context.servers.others()}


def _worker(entry: WorkerEntry, link: WorkerLink | None, url: str) -> Worker:
    return Worker(
        pool=entry.pool,
        name=entry.name,
        generation=entry.generation,
        server=url,
        here=link is not None,
        version=entry.version,
        platform=entry.platform,
        workspaces=list(entry.workspaces),
        tools=list(entry.tools),
        slots=entry.slots,
        sandbox=entry.sandbox,
        connected_at=entry.connected_at,
        calls=UNSET if link is None else link.calls,
        silent_s=UNSET if link is None else round(link.heard_s(), 1),
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/workers",
        "List the connected workers.",
        list_workers,
        WorkerList,
    ),
)
