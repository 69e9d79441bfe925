"""Stores that several homes share, and remote workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from callgate.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.cli.findings import Finding
    from callgate.config.home import Home
    from callgate.config.pins import PinFiles
    from callgate.config.schema import StoreTable
    from callgate.config.stores import SharedStore
    from callgate.dispatch.running import RunningCall
    from callgate.dispatch.sites.examine import Site
    from callgate.features.fleet.membership import Membership
    from callgate.features.fleet.placing import PooledCalls
    from callgate.features.web.access import Names
    from callgate.features.web.contexts import Routes
    from callgate.instance.instance import Service, ServiceContext
    from callgate.instance.wiring.runtime import Wired
    from callgate.socket.instances import InstanceRecord


def _shared_homes() -> ModuleType:
    from callgate.features.fleet import shared_homes  # lazy: few homes share  # noqa: PLC0415

    return shared_homes


def _commands() -> Mapping[str, Any]:
    from callgate.features.fleet.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


def _checks() -> Mapping[str, Any]:
    from callgate.features.fleet.commands.database import check_shared  # lazy: for doctor  # noqa: PLC0415

    return {"shared": check_shared}


def _database_finding(home: Home, table: StoreTable) -> Finding:
    from callgate.features.fleet.commands.database import database_finding  # lazy: for doctor  # noqa: PLC0415

    return database_finding(home, table)


def _database_status(table: StoreTable) -> Mapping[str, Any]:
    from callgate.features.fleet.commands.database import database_status  # lazy: store status  # noqa: PLC0415

    return database_status(table)


def _share(wired: Wired) -> None:
    from callgate.features.fleet.shared_homes import Sharing  # lazy: most homes share nothing  # noqa: PLC0415

    assert wired.shared is not None
    wired.share(Sharing(wired.home, wired.shared, wired.log, wired.audit))


def _workers(wired: Wired) -> PooledCalls:
    """Return the pools of remote workers, without a connection."""
    from callgate.features.fleet.placing import PooledCalls  # lazy: most homes have none  # noqa: PLC0415
    from callgate.features.fleet.pools import WorkerPools  # lazy: as above  # noqa: PLC0415

    pools = WorkerPools(wired.log.store)
    wired.at_close(pools.close)
    return PooledCalls(pools, wired.policies)


def _pool_site(wired: Wired, running: RunningCall | None) -> Site:
    from callgate.features.fleet.placing import InPool  # lazy: few have workers  # noqa: PLC0415

    return InPool(lambda: wired.workers, running)


def _shared_pins(home: Home, shared: SharedStore, kind: str, accept: str) -> PinFiles:
    from callgate.features.fleet.shared_homes import SharedPinFiles  # lazy: as above  # noqa: PLC0415

    return SharedPinFiles(home, shared, kind, accept)


def _services(context: ServiceContext) -> Sequence[Service]:
    from callgate.features.fleet.membership import Presence  # lazy: only for an instance  # noqa: PLC0415

    return (Presence(context),)


def _join_servers(wired: Wired, names: Names, record: InstanceRecord) -> Membership:
    from callgate.features.fleet.membership import Membership  # lazy: only for HTTP  # noqa: PLC0415

    return Membership(wired, names, record)


def _http_routes() -> Routes:
    from callgate.features.fleet.routes import ROUTES  # lazy: for the first visitor  # noqa: PLC0415

    return ROUTES


FEATURE = Feature(
    name="fleet",
    commands=_commands,
    checks=_checks,
    assemble=_share,
    ports={
        "shared_homes": _shared_homes,
        "database_finding": _database_finding,
        "database_status": _database_status,
        "workers": _workers,
        "pool_site": _pool_site,
        "shared_pins": _shared_pins,
        "join_servers": _join_servers,
        "http_routes": _http_routes,
    },
    services=_services,
)
