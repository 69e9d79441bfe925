"""HTTP, as a listener of an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callgate.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.instance.instance import Service, ServiceContext


def _commands() -> Mapping[str, Any]:
    from callgate.features.web.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


def _services(context: ServiceContext) -> Sequence[Service]:
    if not context.endpoints.http:
        return ()
    from callgate.features.web.instance import HttpService  # lazy: only for an instance  # noqa: PLC0415

    return (HttpService(context),)


FEATURE = Feature(
    name="web",
    commands=_commands,
    services=_services,
)
