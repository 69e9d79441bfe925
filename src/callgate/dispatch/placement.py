"""The port for calls whose workspace is on another machine: who runs them, and how they are judged.

`sources.workers` implements it. The road of such a call is the same (`dispatcher`); in place of
the confine stage the worker says where its paths lead, and its tool is one that runs there.
"""

from __future__ import annotations

from typing import Protocol

from callgate.core.calls import ToolCall
from callgate.dispatch.subjects import Subject


class Placement(Protocol):
    async def place(self, call: ToolCall, subject: Subject) -> Subject:
        """The subject with the places that it names there, and with a tool that runs there.

        Raises a `ToolError`: where no worker has the workspace, where a path leaves it, and where
        the tool would work on files of this machine."""
        ...
