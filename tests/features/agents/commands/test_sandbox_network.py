"""`callgate sandbox --network`: values that it refuses instead of reading them as a host."""

from __future__ import annotations

import pytest

from callgate.cli.errors import CliError
from callgate.features.agents.commands.sandbox import _network
from callgate.features.agents.settings import HooksTable


def test_a_network_that_asks_is_refused_and_no_host_is_called_ask() -> None:
    with pytest.raises(CliError):
        _network("ask", HooksTable())
