"""Facts about one session for the guard: an index of its texts, and its labels."""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from callgate.core.calls import ToolCall, ToolResult
from callgate.core.commands import CONNECT_HOST
from callgate.core.content import SESSION_LABELS, Label, Message, ToolResultBlock, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.sessions import ResolvedPath, Session
from callgate.dispatch.permission.new_addresses import new_address
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tool_output import text_of
from callgate.dispatch.tools.registry import Registered
from callgate.policy.provenance import destinations, forms, outgoing, stated
from callgate.policy.provenance.actions import Action, action_of_call, is_publication
from callgate.policy.provenance.forms import addresses_in
from callgate.policy.provenance.index import ConversationIndex
from callgate.policy.provenance.requests import NO_USE, Use
from callgate.policy.provenance.sources import (
    NOWHERE,
    UNKNOWN,
    VOUCHING,
    Flow,
    Source,
    SourceKind,
    Trace,
)
from callgate.policy.rules import GuardSettings, glob_matches
from callgate.redaction.data import redact_value
from callgate.workspace.protected import is_control_file

WITHOUT_DESTINATION = "*"
"""The destination in a remembered answer about calls that have none."""
_NO_DESTINATION = destinations.remembered(WITHOUT_DESTINATION)
_USER = Source(SourceKind.USER)
_SETTINGS = Source(SourceKind.SETTINGS)
_ANSWER = Source(SourceKind.ANSWER)
_PAID = Source(SourceKind.MENTIONED, reason="which ask for one payment, and it was made")
_ATTACHED = Source(SourceKind.ATTACHED)
_SECRET_FILES = (
    ".env",
    ".env.*",
    "id_rsa*",
    "id_ed25519*",
    "id_ecdsa*",
    "*.pem",
    "*.key",
    ".netrc",
)
_FROM_USER = frozenset({SourceKind.USER, SourceKind.SETTINGS})
_WORDS = re.compile(r"[^\s<>|&;()'\"`=:]+")
_LONGEST = 100_000
READING = Use(Action.READ)
_PROSE = (".md", ".txt", ".rst", ".csv", ".log", ".pdf", ".png", ".jpg", ".svg")
"""Endings of files that no command runs."""
_LINKS = 64
_MOST_HOSTS = 10_000
MOST_REFUSALS = 3
"""Refused questions of the guard after which outward effects wait for the user."""
_SHORT = 200
"""Maximum characters of an argument that is traced as one value."""


class SessionFacts:
    def __init__(self) -> None:
        self.index = ConversationIndex()
        self.labels: dict[Label, str] = {}
        """By label: the call that caused it."""
        self.is_told = False
        """Whether the index has words of the user."""
        self.settings = GuardSettings()
        """Settings of the last decision."""
        self._calls = 0
        self._refusals = 0
        """Questions of the guard that a person refused since the user wrote last."""
        self._written: list[str] = []
        """The first file that was written after untrusted content, and that commands may run."""
        self._approved_hosts: set[tuple[str, int]] = set()
        self._paid: set[str] = set()
        """Payees of payments since the user wrote last."""
        self._approved_uses: set[tuple[str, str]] = set()
        """Hosts of approved connections, each with its use: installing, or reading."""

    # Input.

    def tell(self, words: str, attached: str = "") -> None:
        self.is_told = True
        self._refusals = 0
        self._paid.clear()
        self.index.add(_USER, words)
        if attached:
            self.index.add(_ATTACHED, attached)

    def tell_changes(self, before: Any, after: Mapping[str, Any]) -> None:
        """Add the destinations that an approver wrote into the arguments of a call. A changed word
        in a longer text does not make the text the approver's."""
        old = before if isinstance(before, Mapping) else {}
        for name in destinations.destination_params(after):
            known = {value for _, value in destinations.values_of(old, (name,))}
            for _, value in destinations.values_of(after, (name,)):
                if value and value not in known and len(value) <= _SHORT:
                    self.tell(value)

    def refused(self) -> None:
        """Count a question of the guard that a person refused."""
        self._refusals += 1

    def approved(self, subject: Subject, guard: GuardSettings) -> None:
        """Remember the hosts of an approved call for the rest of the session."""
        if subject.enclosure is not None or not subject.tool.outward:
            return
        use = _use_of(subject)
        if use is not None and len(self._approved_uses) < _MOST_HOSTS:
            self._approved_uses.add(use)
        names = parameters(subject, guard)
        for _, value in destinations.values_of(subject.checked.arguments, names):
            address = _host_of(value)
            if address is not None and len(self._approved_hosts) < _MOST_HOSTS:
                self._approved_hosts.add(address[:2])

    def read(
        self, call: ToolCall, subject: Subject, result: ToolResult, guard: GuardSettings
    ) -> dict[Label, str]:
        """Add an output. Returns the labels that are new to the session, with their cause."""
        tool = subject.tool
        self._calls += 1
        labels = _labels(call.session, subject, guard)
        if subject.asks_hosts and _may_have_connected(result) and Label.VOUCHED not in labels:
            labels |= {Label.UNTRUSTED}
        source = _source(tool.name, labels, self._calls, call.id)
        self.index.add(source, text_of(result.content), result.value)
        self._note_written(subject, result)
        self._note_payment(subject, result)
        cause = f"{tool.name} #{self._calls}"
        return {each: cause for each in SESSION_LABELS & labels if each not in self.labels}

    def _note_written(self, subject: Subject, result: ToolResult) -> None:
        """Remember a file that commands may run and that was written after untrusted content."""
        is_tainted = Label.UNTRUSTED in self.labels and result.error is None
        if not is_tainted or subject.tool.effect is not SideEffects.WRITE:
            return
        for resolved in subject.resolved_paths:
            if not resolved.relative.casefold().endswith(_PROSE) and not self._written:
                self._written.append(resolved.relative)

    def load(
        self,
        labels: Mapping[str, str],
        messages: Iterable[tuple[str | None, Message]],
        tool_labels: Mapping[str, frozenset[Label]],
    ) -> None:
        """Load the stored facts of a session. Output of an unknown tool counts as untrusted."""
        known = {label.value: label for label in SESSION_LABELS}
        self.labels = {known[name]: cause for name, cause in labels.items() if name in known}
        names: dict[str, str] = {}
        for words, message in messages:
            if words is not None:
                self.tell(words)
            for block in message.content:
                if isinstance(block, ToolUseBlock):
                    names[block.id] = block.name
                elif isinstance(block, ToolResultBlock):
                    name = names.get(block.tool_use_id, "a tool")
                    self._calls += 1
                    of_tool = tool_labels.get(name, frozenset({Label.UNTRUSTED}))
                    source = _source(name, of_tool, self._calls, block.tool_use_id)
                    self.index.add(source, text_of(block.content))

    # Output.

    def flow(self, subject: Subject, guard: GuardSettings, answered: frozenset[str]) -> Flow:
        """Return the sources of a call's destinations."""
        tool = subject.tool
        use = _use_of(subject)
        if use is not None and use in self._approved_uses:
            answered |= {destinations.remembered(str(subject.checked.arguments["host"]))}
        hosts: tuple[str, ...] = ()
        takes_destinations = True
        if subject.enclosure is not None:
            found, hosts = self._of_command(subject, guard, answered)
        else:
            names = parameters(subject, guard)
            takes_destinations = tool.definition.destination_params is not None
            found = self._trace(subject, names, guard, answered)
            if tool.definition.destination_params is None:
                found += self._nested(subject, names, guard, answered)
            if Label.UNTRUSTED in self.labels and tool.outward:
                found += self._outgoing(subject, names, guard, answered, found)
        return Flow(
            outward=tool.outward or is_online(subject),
            destroys=tool.destructive,
            labels=dict(self.labels),
            destinations=found,
            takes_destinations=takes_destinations,
            carries_secret=self._may_leak(found) and _carries_secret(subject),
            has_effects=tool.has_effects,
            hosts=hosts,
            unnamed_hosts=self._unnamed_hosts(found) if tool.outward else (),
            is_paused=self._refusals >= MOST_REFUSALS,
            is_answered=bool(answered) and _NO_DESTINATION in answered,
        )

    def _outgoing(
        self,
        subject: Subject,
        names: tuple[str, ...],
        guard: GuardSettings,
        answered: frozenset[str],
        found: tuple[Trace, ...],
    ) -> tuple[Trace, ...]:
        """Return traces of the other arguments of a call that sends data out."""
        arguments, use = subject.checked.arguments, _use(subject)
        more: tuple[Trace, ...] = ()
        if use.action is Action.PAY and not found:
            bought = [name for name in arguments if destinations.may_be_destination(name)]
            more += self._trace(subject, bought, guard, answered)
        others = [
            name
            for name in arguments
            if name not in names and not destinations.is_option_name(name)
        ]
        more += self._hidden(subject, names, guard, answered)
        more += self._of_texts(subject, others, guard, found)
        more += self._of_queries(subject)
        if subject.tool.has_effects and self.is_told:
            values = [trace.value for trace in found]
            more += tuple(
                Trace(name, value[:_SHORT], Source(SourceKind.MENTIONED, reason=objection), True)
                for name, value, objection in stated.objections(
                    self.index.users, arguments, use, values
                )
            )
            more += self._of_repeated_payment(use, found)
        return more

    def _of_queries(self, subject: Subject) -> tuple[Trace, ...]:
        """Return traces of queries that change something, or that carry codes of other content."""
        traces = []
        for name, text in destinations.queries_of(subject.checked.arguments):
            if subject.tool.has_effects and outgoing.is_program(text):
                traces.append(Trace(name, text[:_SHORT], self._find("command", text), True))
            elif (carried := self.index.carried(text)) is not None:
                traces.append(Trace(name, text[:_SHORT], carried, True))
        return tuple(traces)

    def _of_repeated_payment(self, use: Use, found: tuple[Trace, ...]) -> tuple[Trace, ...]:
        """Return traces of payees whom the user's words have already made a payment to."""
        if use.action is not Action.PAY:
            return ()
        return tuple(
            msgspec.structs.replace(trace, source=_PAID)
            for trace in found
            if trace.source.kind is SourceKind.USER and _payee(trace.value) in self._paid
        )

    def _note_payment(self, subject: Subject, result: ToolResult) -> None:
        """Remember the payees of a payment: the user's words order it once."""
        if not subject.tool.has_effects or result.error is not None:
            return
        if _use(subject).action is not Action.PAY:
            return
        names = parameters(subject, self.settings)
        values = destinations.values_of(subject.checked.arguments, names)
        self._paid.update(_payee(value) for _, value in values)

    def _unnamed_hosts(self, found: tuple[Trace, ...]) -> tuple[str, ...]:
        """Return the hosts of destinations without a name in the words and without an approval."""
        if not self.is_told:
            return ()
        hosts: dict[str, None] = {}
        for trace in found:
            address = None if trace.vouched else _host_of(trace.value)
            if address is None or address[:2] in self._approved_hosts:
                continue
            if not self.index.names_host(address.host, address.port):
                hosts[address.host] = None
        return tuple(hosts)

    @staticmethod
    def _may_leak(found: tuple[Trace, ...]) -> bool:
        """Whether the call may send its texts to a destination that no trusted source named."""
        return not found or not all(trace.vouched for trace in found)

    def traces(self, subject: Subject) -> tuple[Trace, ...]:
        """Return the sources of all values of a call; a long text has a source for each part."""
        names = parameters(subject, self.settings)
        if subject.enclosure is not None:
            return self._of_command(subject, self.settings, frozenset())[0]
        return tuple(self._all_traces(subject, frozenset(names)))

    def _all_traces(self, subject: Subject, names: frozenset[str]) -> Iterator[Trace]:
        arguments = subject.checked.arguments
        for name, value in destinations.values_of(arguments, tuple(arguments)):
            is_destination = name in names
            if len(value) <= _SHORT:
                source = self._find(name, value, _use(subject))
                yield Trace(name, value, source, is_destination)
                continue
            for source in self.index.parts(value)[:3]:
                yield Trace(name, f"a part of {len(value):,} characters", source, is_destination)

    def _trace(
        self,
        subject: Subject,
        names: Iterable[str],
        guard: GuardSettings,
        answered: frozenset[str],
    ) -> tuple[Trace, ...]:
        values = destinations.values_of(subject.checked.arguments, tuple(names))
        use = _use(subject)
        return tuple(self._destination(name, each, guard, answered, use) for name, each in values)

    def _nested(
        self,
        subject: Subject,
        names: tuple[str, ...],
        guard: GuardSettings,
        answered: frozenset[str],
    ) -> tuple[Trace, ...]:
        """Return traces of destinations inside other parameters, such as `message.to`."""
        nested = destinations.nested_names(subject.checked.arguments, names)
        values = destinations.values_of(nested, tuple(nested)) if nested else ()
        use = _use(subject)
        return tuple(self._destination(name, each, guard, answered, use) for name, each in values)

    def _hidden(
        self,
        subject: Subject,
        names: tuple[str, ...],
        guard: GuardSettings,
        answered: frozenset[str],
    ) -> tuple[Trace, ...]:
        """Return traces of addresses under names that do not show a destination."""
        arguments = subject.checked.arguments
        others = {name: value for name, value in arguments.items() if name not in names}
        use = _use(subject)
        found = itertools.islice(outgoing.hidden_addresses(others), destinations.MOST_VALUES)
        return tuple(self._destination(name, each, guard, answered, use) for name, each in found)

    def _destination(
        self,
        name: str,
        value: str,
        guard: GuardSettings,
        answered: frozenset[str],
        use: Use = NO_USE,
    ) -> Trace:
        if guard.destinations and _is_in_settings(value, guard):
            return Trace(name, value, _SETTINGS, True)
        if answered and destinations.remembered(value) in answered:
            return Trace(name, value, _ANSWER, True)
        return Trace(name, value, self._find(name, value, use), True)

    def _of_texts(
        self,
        subject: Subject,
        names: Iterable[str],
        guard: GuardSettings,
        found: tuple[Trace, ...],
    ) -> tuple[Trace, ...]:
        """Return traces of text that acts as a destination: a link, which its reader may follow,
        and text copied word for word from untrusted content. Such text may only go to destinations
        that the user named, in words or settings."""
        traces = []
        is_said = bool(found) and all(trace.source.kind in _FROM_USER for trace in found)
        is_said = is_said and not is_publication(subject.tool.name)
        for name, text in destinations.texts_of(subject.checked.arguments, tuple(names)):
            links = outgoing.links_in(text)
            for link in links[:_LINKS]:
                traces.append(
                    self._destination(f"link in {name}", link, guard, frozenset(), READING)
                )
            if len(links) > _LINKS:
                traces.append(Trace(name, f"{len(links):,} links", NOWHERE, True))
            for address in outgoing.addressed_in(text):
                part = f"address in {name}"
                traces.append(self._destination(part, address, guard, frozenset(), _use(subject)))
            for number in outgoing.card_numbers_in(text):
                source = self._find("card_number", number)
                if source.kind not in _FROM_USER:
                    source = msgspec.structs.replace(source, kind=_unvouched(source.kind))
                    part = f"card number in {name}"
                    traces.append(Trace(part, f"... {number[-4:]}", source, True))
            copied = None if is_said else self._copied_from(name, text)
            if copied is not None:
                traces.append(Trace(name, text[:_SHORT], copied, True))
        return tuple(traces)

    def _of_users_command(self, subject: Subject, text: str) -> Source:
        """Return the source of a command. The user's own command vouches for no network if it names
        no host, and for nothing once a file that it may run was written after untrusted content."""
        source = self._find("command", text)
        if source.kind is not SourceKind.USER:
            return source
        if self._written:
            changed = next(iter(self._written))
            reason = f"but {changed} was written after untrusted content was read"
            return Source(SourceKind.MENTIONED, reason=reason)
        if _limits_hosts(subject) and not addresses_in(text):
            return Source(SourceKind.MENTIONED, reason="which name no host for it")
        return source

    def copied_into_control_file(self, subject: Subject) -> str:
        """Return a sentence about untrusted content that the call copies to a control file."""
        arguments = subject.checked.arguments
        if subject.tool.effect is SideEffects.WRITE:
            paths = [each.relative for each in subject.resolved_paths]
            names = [name for name in arguments if name not in subject.tool.path_params]
        elif subject.tool.effect is SideEffects.EXECUTE:
            names = [name for name in arguments if destinations.is_command_name(name)]
            texts = (text for _, text in destinations.texts_of(arguments, names))
            paths = [word for text in texts for word in _WORDS.findall(text[:_LONGEST])]
        else:
            return ""
        control = next(filter(is_control_file, paths), None)
        if control is None:
            return ""
        for _, text in destinations.texts_of(arguments, names):
            source = self.index.copied(text)
            if source is not None:
                return (
                    f"It copies {source} into {control}, which agents or tools follow or run later."
                )
        return ""

    def names_new_address(self, subject: Subject) -> str:
        """Return a sentence about an unnamed host in a text that runs or loads later."""
        return new_address(subject, self._is_named) if self.is_told else ""

    def _is_named(self, address: forms.Address) -> bool:
        is_approved = address[:2] in self._approved_hosts
        return is_approved or self.index.names_host(address.host, address.port)

    def _copied_from(self, name: str, text: str) -> Source | None:
        """Return the untrusted source of a short text, or of a part of a long one. Texts of one or
        two words are ignored, because they occur in many sources."""
        for reading in (text, *outgoing.decodings(text), *outgoing.disguises(text)):
            is_phrase = len(reading) <= _SHORT and len(reading.split()) > 2
            sources = [self._find(name, reading)] if is_phrase else []
            sources += self.index.parts(reading)
            found = next((each for each in sources if each.untrusted), None)
            found = found or self.index.carried(reading)
            if found is not None:
                return found
        return None

    def _find(self, name: str, value: str, use: Use = NO_USE) -> Source:
        return self.index.trace(name, value, use) if self.is_told else UNKNOWN

    def _of_command(
        self, subject: Subject, guard: GuardSettings, answered: frozenset[str]
    ) -> tuple[tuple[Trace, ...], tuple[str, ...]]:
        """Return the destinations of a command, and the hosts that it is then limited to. The
        destinations are the hosts of the settings, the command itself if a trusted source has it,
        or the hosts in its text."""
        if not is_online(subject):
            return (), ()
        if (
            not subject.reaches_network
            and subject.enclosure is not None
            and subject.enclosure.hosts
        ):
            named = ", ".join(map(str, subject.enclosure.hosts))
            return (Trace("network", named, _SETTINGS, True),), ()
        command = subject.checked.arguments.get("command")
        text = command if isinstance(command, str) else ""
        command_trace = Trace("command", text, self._of_users_command(subject, text), True)
        if not _limits_hosts(subject):
            return (command_trace,), ()
        if command_trace.vouched:
            return (command_trace,), tuple(dict.fromkeys(addresses_in(text).values()))
        found = addresses_in(text)
        traces = tuple(self._destination("host", each, guard, answered) for each in found)
        return (traces, tuple(dict.fromkeys(found.values()))) if traces else ((command_trace,), ())


def _limits_hosts(subject: Subject) -> bool:
    """Whether the sandbox of a command can limit it to some hosts."""
    return subject.enclosure is not None and subject.enclosure.is_online


def parameters(subject: Subject, guard: GuardSettings) -> tuple[str, ...]:
    """Return the parameters of a call that are destinations."""
    tool = subject.tool
    for pattern, names in guard.parameters.items():
        if _names_tool(pattern, tool):
            return names
    declared = tool.definition.destination_params
    if declared is not None:
        return declared
    schema = tool.definition.input_schema.get("properties", {})
    every = dict.fromkeys((*schema, *subject.checked.arguments))
    return destinations.destination_params(every, destructive=tool.destructive)


def _unvouched(kind: SourceKind) -> SourceKind:
    """Return a kind that permits no effect: a record of the user is no order to send it."""
    return SourceKind.TOOL if kind in VOUCHING else kind


def _payee(value: str) -> str:
    return forms.squeeze(forms.fold(value))


def _host_of(value: str) -> forms.Address | None:
    """Return the address in a URL or host; None for other values, such as mail addresses."""
    if "@" in value and "://" not in value:
        return None
    folded = forms.fold(value.strip())
    address = forms.address_of(value.strip())
    is_host = address is not None and forms.is_named_host(folded, address)
    return address if is_host else None


def _use(subject: Subject) -> Use:
    """Return the use of the destinations of a call."""
    tool, arguments = subject.tool, subject.checked.arguments
    reads = tool.effect is SideEffects.READ
    if "method" not in arguments:
        return _use_of_tool(tool.name, reads, tool.destructive)
    action = action_of_call(tool.name, arguments, reads=reads, destroys=tool.destructive)
    return Use(action, tool.name)


@lru_cache(maxsize=4096)
def _use_of_tool(tool: str, reads: bool, destroys: bool) -> Use:
    return Use(action_of_call(tool, {}, reads=reads, destroys=destroys), tool)


def is_online(subject: Subject) -> bool:
    """Whether commands of the tool may reach the network."""
    return subject.tool.effect is SideEffects.EXECUTE and not subject.contained


def destinations_of(subject: Subject, guard: GuardSettings) -> tuple[str, ...]:
    """Return the destinations of a call that sends data out or destroys it. A narrow answer covers
    them. Empty for a command, which can reach more than the hosts in its text, and for a payment,
    which is approved each time."""
    if not subject.tool.is_guarded or subject.enclosure is not None:
        return ()
    if _use(subject).action is Action.PAY:
        return ()
    values = destinations.values_of(subject.checked.arguments, parameters(subject, guard))
    return tuple(dict.fromkeys(destinations.exact_destination(value) for _, value in values))


def _labels(session: Session, subject: Subject, guard: GuardSettings) -> frozenset[Label]:
    labels = set(subject.tool.output_labels)
    for label, patterns in guard.labels.items():
        if any(_names_tool(pattern, subject.tool) for pattern in patterns):
            labels.add(label)
            if label is Label.VOUCHED:
                labels.discard(Label.UNTRUSTED)
    if is_online(subject) and Label.VOUCHED not in labels:
        labels.add(Label.UNTRUSTED)
    if subject.resolved_paths:
        beside = {os.path.realpath(root.path) for root in session.extra_roots}
        if any(_is_private(path, beside) for path in subject.resolved_paths):
            labels.add(Label.PRIVATE)
    return frozenset(labels)


def _may_have_connected(result: ToolResult) -> bool:
    """Whether a command reached hosts that were approved while it ran, or was interrupted, so that
    this is unknown."""
    network = result.meta.get("network")
    reached = network.get("reached", 0) if isinstance(network, Mapping) else 0
    return bool(reached) or result.partial or result.error is not None


def _is_private(path: ResolvedPath, beside: set[str]) -> bool:
    """Whether a file is in an extra root, or has a name that is typical of secrets."""
    name = os.path.basename(path.real)
    return path.root in beside or any(
        glob_matches(glob, name, paths=False, fold=True) for glob in _SECRET_FILES
    )


def _source(tool: str, labels: frozenset[Label], number: int, call_id: str) -> Source:
    untrusted = Label.UNTRUSTED in labels
    if Label.VOUCHED in labels:
        kind = SourceKind.VOUCHED
    elif untrusted:
        kind = SourceKind.TOOL
    else:
        kind = next((_KINDS[each] for each in _KINDS if each in labels), SourceKind.TOOL)
    return Source(kind, tool, number, call_id, untrusted)


_KINDS = {
    Label.WORKSPACE: SourceKind.WORKSPACE,
    Label.MEMORY: SourceKind.MEMORY,
}


def _names_tool(pattern: str, tool: Registered) -> bool:
    names = (tool.name, *tool.definition.aliases)
    return any(glob_matches(pattern, name, paths=False, fold=True) for name in names)


def _is_in_settings(value: str, guard: GuardSettings) -> bool:
    """Whether the settings list a value: an address or host by pattern, another value exactly."""
    folded = forms.fold(value.strip())
    mail, address = forms.email_in(folded), forms.address_of(folded)
    if mail is None and address is None:
        return folded in map(forms.fold, guard.destinations)
    spelling = mail if mail is not None else address.host if address is not None else ""
    return any(
        glob_matches(forms.fold(pattern), spelling, paths=False, fold=False)
        for pattern in guard.destinations
    )


def _carries_secret(subject: Subject) -> bool:
    if not (subject.tool.outward or is_online(subject)):
        return False
    arguments = subject.checked.arguments
    return bool(redact_value(arguments) != arguments)


def _use_of(subject: Subject) -> tuple[str, str] | None:
    """Return the host of a connection and its use; None if callgate does not know the use."""
    if subject.tool.name != CONNECT_HOST:
        return None
    arguments = subject.checked.arguments
    use = arguments.get("installs") or arguments.get("reads")
    return None if use is None else (str(arguments.get("host")), str(use))
