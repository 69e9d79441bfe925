"""The HTTP surface of an instance, put together. Nothing of it is loaded before a visitor comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from callgate.audit.forward import end_of
from callgate.config.secrets.shared_keys import ACCESS, SERVERS, key_finder
from callgate.core.sessions import Mode
from callgate.instance.directories import ServedDirectories
from callgate.instance.errors import CannotServe
from callgate.instance.listeners import listen_http
from callgate.surfaces.draining import Draining
from callgate.surfaces.http.access import Access, private_name, token_path
from callgate.surfaces.http.addresses import (
    Address,
    BadAddress,
    Names,
    read_advertised,
    read_public,
)
from callgate.surfaces.http.dependencies import Dependencies, Served
from callgate.surfaces.http.lazy_server import LazyHttpServer
from callgate.surfaces.http.servers.directory import Description, Servers
from callgate.surfaces.http.servers.shared_access import SharedAccess
from callgate.surfaces.socket.instances import InstanceRecord
from callgate.surfaces.unfinished import Unfinished
from callgate.wiring.runtime import Wired


def open_http(
    addresses: Sequence[Address],
    wired: Wired,
    directories: ServedDirectories,
    record: InstanceRecord,
    ceiling: Mode | None,
    unfinished: Unfinished,
    draining: Draining,
) -> tuple[LazyHttpServer, Access]:
    """A server that listens, and who may come in. Raises `CannotServe`."""
    listening, bound = listen_http(addresses)
    home, settings = wired.home, wired.settings
    try:
        path = token_path(home.path, record.pid)
        access = Access(path)
        if wired.sharing is not None:
            access = SharedAccess(path, wired.runtime.store, key_finder(home, ACCESS))
        private = private_name(home.path) if bound.is_local else None
        names = Names(
            bound,
            private,
            advertised=_advertised(settings.instance.advertise_url),
            public=_public(settings.instance.public_url),
        )
    except BaseException:
        listening.close()
        raise
    served = Served(
        pid=record.pid,
        version=record.version,
        started_at=record.started_at / 1000,
        workspaces=list(directories.roots),
        mode=directories.mode,
        ceiling=ceiling,
        model=settings.model,
        models=sorted(settings.models),
        home=home.path,
        audit=home.audit,
    )
    dependencies = Dependencies(
        runtime=wired.runtime,
        open_session=directories.open_session,
        open_agent=wired.open_agent,
        hosts=wired.hosting,
        served=served,
        access=access,
        names=names,
        skills=lambda: wired.skills,
        refresh=wired.policies.refresh,
        unfinished=unfinished,
        servers=Servers(
            wired.runtime.store,
            _description(names, record),
            key_finder(home, SERVERS),
            partial(is_same_directory, home.path, os.stat(home.path)),
        ),
        draining=draining,
        workers=lambda: wired.workers,
        chain=lambda: wired.chain,
        counted_from=end_of(home.audit),
    )
    return LazyHttpServer(listening, dependencies), access


def is_same_directory(path: str, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), before)
    except OSError:
        return False


def _advertised(url: str | None) -> str | None:
    try:
        return None if url is None else read_advertised(url)
    except BadAddress as error:
        raise CannotServe(f"[instance] advertise_url: {error}") from error


def _public(url: str | None) -> str | None:
    try:
        return None if url is None else read_public(url)
    except BadAddress as error:
        raise CannotServe(f"[instance] public_url: {error}") from error


def _description(names: Names, record: InstanceRecord) -> Description:
    return Description(
        url=names.servers_url,
        version=record.version,
        label=record.label,
        started_at=record.started_at / 1000,
    )
