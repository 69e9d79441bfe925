"""The rules that the record of a home suggests (`policy.suggestions`), by the settings in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callgate.audit.reading import Filter, newest_calls, search
from callgate.config.backtest_inputs import lookups, settings_in_force
from callgate.config.home import Home
from callgate.core.sessions import Mode
from callgate.policy.backtesting.inputs import KnownTool
from callgate.policy.suggestions.suggesting import Suggestions, Wanted, suggest

_MOST_DENIALS = 200_000


def suggested_rules(
    home: Home,
    wanted: Wanted,
    *,
    since_ms: int,
    tool: Callable[[str], KnownTool | None],
    modes: Mapping[str, Mode],
    limit: int | None = None,
    report: Callable[[int], None] = lambda count: None,
) -> Suggestions:
    """Reads at most `limit` records. Raises `SettingsError`, and `OSError` of the log."""
    denials = search(home.audit, Filter(decision="deny"), _MOST_DENIALS)
    return suggest(
        settings_in_force(home),
        newest_calls(home.audit, since_ms, limit),
        [record for record, _ in reversed(denials)],
        since_ms=since_ms,
        wanted=wanted,
        lookups=lookups(home, tool),
        modes=modes,
        report=report,
    )
