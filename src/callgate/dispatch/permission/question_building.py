"""Construction of a confirmation: exact arguments, their origins, and the client process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.commands import CONNECT_HOST
from callgate.core.effects import SideEffects
from callgate.core.ids import ulid
from callgate.core.ops import PutEntry
from callgate.core.sessions import Client
from callgate.core.stores import Store, StoreError
from callgate.core.tools import Preview
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.subjects import Subject
from callgate.policy.commands import proposals, read_command
from callgate.policy.decisions import Decision, Reason
from callgate.policy.provenance.sources import Trace, lines_for_person
from callgate.policy.rules import Proposal
from callgate.redaction.data import summarize
from callgate.redaction.texts import redact

_LONGEST_NAME = 80


def client_of(process: int | None, name: str | None = None) -> Client:
    """Identify a client. `name` is its unverified name. `process` 0 or None: unknown."""
    return Client(
        process=process or None,
        program=_link(process, "exe") if process else None,
        directory=_link(process, "cwd") if process else None,
        name=None if name is None else redact(name[:_LONGEST_NAME]),
    )


def this_process() -> Client:
    return client_of(os.getpid())


def _link(process: int | None, name: str) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/{name}")
    except OSError:  # no such file system, another user's, or gone
        return None


_log = logging.getLogger("callgate.confirmations")
OpenStore = Callable[[], Awaitable[Store]]


def build_question(
    call: ToolCall,
    subject: Subject,
    decision: Decision,
    *,
    traces: tuple[Trace, ...],
    destinations: tuple[str, ...],
    preview: Preview | None,
    answer_s: float,
    hints: Sequence[str] = (),
) -> Confirmation:
    """Build the question about a call. `traces` has the sources of its argument values. It expires
    after `answer_s`. `hints` are further sentences for the approver."""
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
        why=_why(call, subject, decision, hints),
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
        proposals=_proposals(call, subject, decision),
        expires_at=time.time() + answer_s,
    )


def _proposals(call: ToolCall, subject: Subject, decision: Decision) -> tuple[Proposal, ...]:
    """Return the patterns that an "always" answer may save; none if no answer is remembered."""
    command = subject.checked.arguments.get("command")
    is_once = subject.tool.definition.always_ask or decision.counts_once or call.session.is_worker
    if subject.tool.name == CONNECT_HOST and not is_once:
        return host_proposals(str(subject.checked.arguments["host"]))
    if is_once or not isinstance(command, str) or len(subject.resolved_paths) > 1:
        return ()
    return proposals(read_command(command), network=subject.widened)


def host_proposals(host: str) -> tuple[Proposal, ...]:
    """Return the patterns that cover a host: its name, and all names of its domain."""
    name = host.removeprefix("private:")
    labels = name.partition(":")[0].split(".")
    exact = Proposal(host, host)
    is_registry = len(labels[-1]) == 2 and len(labels[-2:][0]) <= 3  # such as co.uk
    if len(labels) < (4 if is_registry else 3) or labels[-1].isdigit():
        return (exact,)
    domain = name.partition(".")[2]
    inside = host[: -len(name)]
    return exact, Proposal(f"{inside}*.{domain}", f"every name below {domain}")


def _hosts(command: str) -> str:
    """Return the hosts in the text of a command, which its approval covers."""
    from callgate.dispatch.permission.connections import hosts_in  # lazy: few reach any  # noqa: PLC0415

    return ", ".join(map(str, hosts_in(command)))


def _why(call: ToolCall, subject: Subject, decision: Decision, hints: Sequence[str]) -> str:
    purpose = "" if call.handover is None else call.handover.purpose
    sentences = [purpose, decision.sentence] if purpose else [decision.sentence]
    if subject.widened and decision.reason is not Reason.NETWORK:
        sentences.append("It needs the network.")
    command = subject.checked.arguments.get("command")
    if subject.asks_hosts and isinstance(command, str) and (hosts := _hosts(command)):
        sentences.append(f"Your approval lets it reach {hosts}; other hosts need approval.")
    if decision.counts_once:
        sentences.append("The answer counts for this call alone.")
    elif call.session.is_worker:
        sentences.append("A sub-agent asks; the answer counts for this call alone.")
    return " ".join([*sentences, *hints])


NO_CONVERSATION = (
    "The agent reported none of your messages, so the guard does not check where this data goes."
)


READ_HINT = (
    "This command only reads: `callgate init --read-commands allow` lets such commands run without"
    " approval, in the read-only sandbox without network."
)
_HINT_AT = 3
_QUESTIONS = "read_questions"
"""Kind of the entries that count questions about reading commands, by principal."""


async def read_hint(open_store: OpenStore, principal: str) -> str:
    """Return a hint about the setting `read_commands` at a principal's third question about a
    reading command, else an empty text. The store counts for all processes."""
    try:
        store = await open_store()
        entries = await store.entries(_QUESTIONS)
        entry = next((each for each in entries if each.name == principal), None)
        while (count := 0 if entry is None else int(entry.value)) < _HINT_AT:
            put = PutEntry(
                kind=_QUESTIONS,
                name=principal,
                value=str(count + 1),
                expected=0 if entry is None else entry.version,
            )
            (receipt,) = await store.commit(put)
            if receipt.applied:
                return READ_HINT if count + 1 == _HINT_AT else ""
            entry = receipt.entry
    except (StoreError, ValueError) as error:
        _log.warning("a question about a read-only command is not counted: %s", error)
    return ""
