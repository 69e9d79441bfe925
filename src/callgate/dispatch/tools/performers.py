"""Who runs a call in place of its tool: an agent of somebody else, which asks by a hook before.

The call is judged, asked about and recorded as any other. Where `by_agent` holds, nothing of ours
is around its commands, as in an editor's terminal; else our sandbox is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callgate.core.tools import ToolFactory
from callgate.dispatch.tools.registry import Registered


class Performer(msgspec.Struct, frozen=True):
    wrap: Callable[[ToolFactory], ToolFactory]
    """Makes what is run of what the tool would run."""
    by_agent: bool = True

    def take(self, tool: Registered) -> Registered:
        return msgspec.structs.replace(tool, factory=self.wrap(tool.factory))
