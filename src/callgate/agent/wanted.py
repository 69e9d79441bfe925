"""The calls that a model wants, whichever way it said so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from callgate.core.content import ToolUseBlock
from callgate.core.ids import call_id
from callgate.core.models import Reply
from callgate.protocol.toolcalls.values import OUTPUTS, FoundCall


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    use: ToolUseBlock
    """Under an id of our own: a model's may come twice, or name another call's."""
    priority: int | float = 0
    repaired: bool = False
    """Read from a text that had to be mended."""
    problem: str | None = None
    """Why it cannot be run: it is answered, and nothing else."""

    @property
    def is_output(self) -> bool:
        """It shows something or ends the turn, and needs no tool."""
        return self.use.name in OUTPUTS and self.problem is None


def from_reply(reply: Reply) -> list[Wanted]:
    """The native calls of a reply, in their order."""
    blocks = (block for block in reply.message.content if isinstance(block, ToolUseBlock))
    declined = "the model declined" if reply.stop == "refusal" else None
    return [_native(block, declined or reply.unreadable.get(block.id)) for block in blocks]


def _native(block: ToolUseBlock, problem: str | None) -> Wanted:
    given = block.input
    if not isinstance(given, dict):
        given, problem = {}, problem or "the arguments are not a JSON object"
    return Wanted(use=ToolUseBlock(call_id(), block.name, given, block.id), problem=problem)


def from_found(found: FoundCall) -> Wanted:
    """A call that was written as text."""
    return Wanted(
        use=ToolUseBlock(call_id(), found.type, found.parameters, found.id),
        priority=found.priority,
        repaired=found.repaired,
    )


def in_order(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Outputs where they stand; the others by priority, and by their order where it is equal."""
    others = iter(sorted((each for each in wanted if not each.is_output), key=_urgency))
    return [each if each.is_output else next(others) for each in wanted]


def _urgency(wanted: Wanted) -> float:
    return -wanted.priority


def uses(wanted: Iterable[Wanted]) -> list[ToolUseBlock]:
    return [each.use for each in wanted]
