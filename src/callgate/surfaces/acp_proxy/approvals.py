"""What the agent may do by itself at this moment, and what it has not told the end of yet.

A yes to an agent's question lets it do the work. Some agents then do it through their client: the
same file is written, or the same command run, by us. That is what the yes was about, and it is not
asked about again; a different text or command is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from callgate.surfaces.acp_proxy.judging import JudgedTool, absolute
from callgate.surfaces.acp_proxy.runners import AgentWork

_HANDED_OVER = "The agent had it done by callgate."


class _Approved(NamedTuple):
    work: AgentWork
    judged: JudgedTool


class Approvals:
    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._open: dict[str, _Approved] = {}

    def begin(self, tool_call_id: str, work: AgentWork, judged: JudgedTool) -> None:
        """The agent may do it now."""
        self.end(tool_call_id, success=True)
        self._open[tool_call_id] = _Approved(work, judged)

    def end(
        self, tool_call_id: str, *, success: bool, how: str | None = None, by_agent: bool = True
    ) -> None:
        """The agent has done it, or failed to; or callgate does it, if not `by_agent`."""
        approved = self._open.pop(tool_call_id, None)
        if approved is not None:
            summary = "The agent did it." if success else "The agent failed to do it."
            approved.work.end(success=success, how=how or summary, by_agent=by_agent)

    def end_all(self, how: str, *, success: bool = False) -> None:
        for id in list(self._open):
            self.end(id, success=success, how=how)

    def covers_write(self, path: str, content: str) -> bool:
        """Whether a file is written exactly as was approved. The approval is used up: its own
        call ends, and frees the slot that the write may need."""
        where = absolute(path, self._workspace)
        for id, approved in self._open.items():
            arguments = approved.judged.arguments
            if arguments.get("path") == where and approved.work.becomes == content:
                self.end(id, success=True, how=_HANDED_OVER, by_agent=False)
                return True
        self._hand_over("path", where)
        return False

    def covers_command(self, arguments: dict[str, Any]) -> bool:
        for id, approved in self._open.items():
            if approved.judged == ("shell", arguments):
                self.end(id, success=True, how=_HANDED_OVER, by_agent=False)
                return True
        return False

    def _hand_over(self, key: str, value: str) -> None:
        """What was approved is about to be done differently: that is judged anew."""
        for id, approved in list(self._open.items()):
            if approved.judged.arguments.get(key) == value:
                self.end(id, success=False, how="The agent asked for something else instead.")
