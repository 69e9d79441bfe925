"""The calls that the agent may do by itself at this moment, and has not told the end of yet.

A yes to an agent's question lets it do the work. Some agents then do it through their client: the
same file is written, or the same command run, by us. Others have a hook of callgate, too, which
tells of the same call before or after the question. The yes covers these, and no other text or
command.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callgate.surfaces.acp_proxy.judging import AGENT_ACTION, JudgedTool, absolute
from callgate.surfaces.acp_proxy.runners import AgentWork

_HANDED_OVER = "The agent had it done by callgate."


class _Approved(msgspec.Struct):
    work: AgentWork
    judged: JudgedTool
    told_by: set[str]
    """By the agent's "hook", its "question", or both: each tells of a call once."""


class Approvals:
    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._open: dict[str, _Approved] = {}

    def begin(
        self, tool_call_id: str, work: AgentWork, judged: JudgedTool, told_by: str = "question"
    ) -> None:
        """The agent may do it now."""
        self.end(tool_call_id, success=True)
        self._open[tool_call_id] = _Approved(work, judged, {told_by})

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

    def find_told(self, id: str | None, judged: JudgedTool, told_by: str) -> str | None:
        """The id of an approval that the other of hook and question has brought for this call.
        The approval then counts for both. An id alone is not enough: the calls must agree."""
        for key, approved in self._open.items():
            if told_by not in approved.told_by and _is_same(key, approved.judged, id, judged):
                approved.told_by.add(told_by)
                return key
        return None

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


def _is_same(key: str, known: JudgedTool, id: str | None, judged: JudgedTool) -> bool:
    """Whether two reports are about one call. One of them may say too little (`agent_action`): it
    must then have the same id, or show the whole command of the other."""
    if known == judged:
        return True
    if AGENT_ACTION not in (known.tool, judged.tool):
        return ids_match(key, id) and _is_same_edit(known, judged)
    if ids_match(key, id):
        return True
    unclear, clear = (known, judged) if known.tool == AGENT_ACTION else (judged, known)
    command = clear.arguments.get("command")
    title = unclear.arguments.get("title")
    return isinstance(command, str) and isinstance(title, str) and title.startswith(command)


def _is_same_edit(one: JudgedTool, other: JudgedTool) -> bool:
    """Whether one shows the whole new text of a file, and the other the change of it."""
    path = one.arguments.get("path")
    tools = {one.tool, other.tool}
    return tools == {"write_file", "patch_file"} and path == other.arguments.get("path")


def ids_match(one: str, other: str | None) -> bool:
    """Some agents put the turn before the id of the call."""
    if not other:
        return False
    return one == other or one.endswith(f":{other}") or other.endswith(f":{one}")
