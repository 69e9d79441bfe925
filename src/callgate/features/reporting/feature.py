"""Telemetry, notifications, and commands that report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from callgate.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.instance.instance import Service, ServiceContext
    from callgate.instance.wiring.runtime import Wired


def _settings() -> type:
    from callgate.features.reporting.settings import (  # noqa: PLC0415
        # lazy: with a table in the file
        ReportingSettings,
    )

    return ReportingSettings


def _commands() -> Mapping[str, Any]:
    from callgate.features.reporting.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


def _trace(wired: Wired) -> None:
    """Start telemetry if the runtime has an audit log."""
    import logging  # lazy: heavy for a command line  # noqa: PLC0415
    from importlib.util import find_spec  # lazy: most homes have none  # noqa: PLC0415

    from callgate.features.reporting.tracing import Tracing, is_disabled  # lazy: as above  # noqa: PLC0415

    if wired.audit is None or is_disabled(os.environ):
        return
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        logging.getLogger("callgate").error(
            "telemetry is enabled and cannot be sent: install callgate[otel]"
        )
        return
    table = wired.settings.table("telemetry")
    cursor = os.path.join(wired.home.path, "exports", "telemetry.json")
    wired.trace(
        Tracing(
            wired.home.audit, cursor, with_arguments=table.arguments, flush_s=table.flush_seconds
        )
    )


def _services(context: ServiceContext) -> Sequence[Service]:
    from callgate.features.reporting.notices import (  # noqa: PLC0415
        # lazy: only for an instance
        QuestionNotices,
    )

    return (QuestionNotices(context.wired, context.page_url),)


FEATURE = Feature(
    name="reporting",
    settings=_settings,
    commands=_commands,
    assemble=_trace,
    services=_services,
)
