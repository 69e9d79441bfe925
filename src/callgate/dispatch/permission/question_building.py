"""The question about a call, made of the arguments that will run and of what is known of them."""

from __future__ import annotations

import time

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import SideEffects
from callgate.core.ids import ulid
from callgate.core.tools import Preview
from callgate.dispatch.clients import this_process
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.subjects import Subject
from callgate.policy.decide import Decision
from callgate.policy.provenance.sources import Trace, lines_for_person
from callgate.redaction.summaries import summarize
from callgate.redaction.texts import redact


def build_question(
    call: ToolCall,
    subject: Subject,
    decision: Decision,
    *,
    traces: tuple[Trace, ...],
    destinations: tuple[str, ...],
    preview: Preview | None,
    answer_s: float,
) -> Confirmation:
    """`traces`: where the values of its arguments come from. It waits `answer_s` for an answer."""
    tool, checked = subject.tool, subject.checked
    command = checked.arguments.get("command")
    writes = tool.effect is SideEffects.WRITE
    return Confirmation(
        id=ulid(),
        event_id=ulid(),
        call_id=call.id,
        tool_use_id=call.shown_id,
        session_id=call.session.id,
        turn_id=call.turn_id,
        tool=tool.name,
        side_effects=tool.effect,
        destructive=tool.destructive,
        arguments=checked.arguments,
        arguments_sha256=checked.sha256,
        workspace=call.session.workspace,
        why=_why(call, subject, decision),
        caller=CallerKind(call.caller),
        client=call.client or call.session.client or this_process(),
        always_ask=tool.definition.always_ask or decision.counts_once,
        sandbox=None if subject.enclosure is None else str(subject.enclosure),
        input_summary=summarize(checked.arguments),
        preview=None if preview is None else preview.text,
        preview_is_ours=tool.definition.source == "builtin",
        diffs=() if preview is None else preview.diffs,
        projected_modifications=tuple(
            resolved.relative for resolved in subject.resolved_paths if writes
        ),
        command_summary=summarize(redact(command)) if isinstance(command, str) else None,
        provenance=traces,
        provenance_lines=lines_for_person(traces),
        destinations=destinations,
        expires_at=time.time() + answer_s,
    )


def _why(call: ToolCall, subject: Subject, decision: Decision) -> str:
    sentences = [decision.sentence]
    if subject.widened and decision.reason != "network":
        sentences.append("It needs the network.")
    if decision.counts_once:
        sentences.append("The answer counts for this call alone.")
    elif call.session.is_worker:
        sentences.append("A sub-agent asks; the answer counts for this call alone.")
    return " ".join(sentences)
