"""Inspect: an approver that asks a gate about every tool call of an evaluation.

    eval(task, model, approval=[ApprovalPolicy(gate_approver(effects={...}), "*")])

Inspect runs the tool itself after that, so the record of a call is the decision about it: what
the tool did then is in Inspect's own log. Each sample has a session of its own, with its own
conversation and answers, unless a gate is given. `sandbox="callgate"` (`inspect_sandbox`) has the
commands of a sample run in our sandbox, too.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from inspect_ai.approval import Approval, Approver, approver
from inspect_ai.hooks import Hooks, RunEnd, SampleEnd, hooks
from inspect_ai.model import ChatMessage, ChatMessageUser
from inspect_ai.tool import ToolCall, ToolCallView
from inspect_ai.util import store

from callgate.adapters.guard import GateError, Guard, is_unchanged
from callgate.gate import Gate

_KEY = "callgate:session"
"""Under which a sample's own store names its gate."""

_PROMPTED = "callgate:prompted"

_open: dict[str, Gate] = {}
"""The gates of samples under way. Inspect gives an approver no end of its own."""


@approver(name="gate")
def gate_approver(
    effects: Mapping[str, Any] | None = None,
    workspace: str = ".",
    mode: str | None = None,
    home: str | None = None,
    gate: Gate | None = None,
) -> Approver:
    """Approve, edit or reject by the policy of callgate, which asks a person where it must.

    `effects` says what each tool can do (`{"bash": "execute", "think": "none"}`); one that is not
    in it asks. `gate`: one for all samples, open in the loop of `eval_async`."""
    guards: dict[str, Guard] = {}
    shared = None if gate is None else Guard(gate, effects)

    async def find_guard() -> Guard:
        if shared is not None:
            return shared
        key = store().get(_KEY)
        if key is None or key not in _open:
            key = uuid.uuid4().hex
            store().set(_KEY, key)
            _open[key] = await Gate(workspace, [], mode=mode, home=home).__aenter__()
        if key not in guards:
            guards[key] = Guard(_open[key], effects)
        return guards[key]

    async def approve(
        message: str, call: ToolCall, view: ToolCallView, history: list[ChatMessage]
    ) -> Approval:
        approved: list[dict[str, Any]] = []

        async def run(judged: dict[str, Any]) -> str:
            approved.append(judged)
            return "Approved; Inspect runs it."

        try:
            await (await find_guard()).call(
                call.function, call.arguments, run, call_id=call.id, prompts=_first_prompts(history)
            )
        except GateError as error:
            return Approval(decision="reject", explanation=str(error))
        (judged,) = approved
        if is_unchanged(judged, call.arguments):
            return Approval(decision="approve")
        return Approval(decision="modify", modified=dataclasses.replace(call, arguments=judged))

    return approve


@hooks(name="callgate", description="Closes the sessions of samples that have ended.")
class SessionHooks(Hooks):
    """Ends what `gate_approver` began."""

    def enabled(self) -> bool:
        """Inspect names every hook that is, at its start."""
        return bool(_open)

    async def on_sample_end(self, data: SampleEnd) -> None:
        await _close(data.sample.store.get(_KEY))

    async def on_run_end(self, data: RunEnd) -> None:
        for key in tuple(_open):
            await _close(key)


async def _close(key: Any) -> None:
    gate = _open.pop(key, None) if isinstance(key, str) else None
    if gate is not None:
        await gate.__aexit__(None, None, None)


def _first_prompts(history: list[ChatMessage]) -> list[str]:
    """The input of the sample, with its first call. Later ones may be of agents that other agents
    have prompted."""
    if store().get(_PROMPTED):
        return []
    store().set(_PROMPTED, True)
    return [
        each.text
        for each in history
        if isinstance(each, ChatMessageUser) and each.source == "input"
    ]
