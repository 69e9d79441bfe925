"""What one session was told and has read: an index of its texts, and its labels."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from callgate.core.calls import ToolCall
from callgate.core.content import SESSION_LABELS, Label, ToolResultBlock, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.messages import Message
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.dispatch.contents import text_of
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.registry import Registered
from callgate.policy.provenance import destinations, forms
from callgate.policy.provenance.commands import addresses_in
from callgate.policy.provenance.index import ConversationIndex
from callgate.policy.provenance.sources import NOWHERE, UNKNOWN, Flow, Source, SourceKind, Trace
from callgate.policy.rules import GuardSettings, glob_matches
from callgate.redaction.data import redact_value

WITHOUT_DESTINATION = "*"
"""Stands for that of a call which has none, in an answer for the session."""
_NO_DESTINATION = destinations.remembered(WITHOUT_DESTINATION)
_USER = Source(SourceKind.USER)
_SETTINGS = Source(SourceKind.SETTINGS)
_ANSWER = Source(SourceKind.ANSWER)
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
_SAID = frozenset({SourceKind.USER, SourceKind.SETTINGS})
_LINKS = 64
_SHORT = 200
"""Characters of an argument that is looked for as one value."""


class SessionFacts:
    def __init__(self) -> None:
        self.index = ConversationIndex()
        self.labels: dict[Label, str] = {}
        """Each with the call that brought it."""
        self.is_told = False
        """Whether anybody said what the user wrote."""
        self.settings = GuardSettings()
        """As of the last call that was judged."""
        self._calls = 0

    # What comes in.

    def tell(self, words: str, attached: str = "") -> None:
        self.is_told = True
        self.index.add(_USER, words)
        if attached:
            self.index.add(_ATTACHED, attached)

    def tell_changes(self, before: Any, after: Mapping[str, Any]) -> None:
        """The destinations that a person wrote into the arguments of a call. A text in which they
        changed a word is not theirs for that."""
        old = before if isinstance(before, Mapping) else {}
        for name in destinations.destination_params(after):
            known = {value for _, value in destinations.values_of(old, (name,))}
            for _, value in destinations.values_of(after, (name,)):
                if value and value not in known and len(value) <= _SHORT:
                    self.tell(value)

    def read(
        self, call: ToolCall, subject: Subject, result: ToolResult, guard: GuardSettings
    ) -> dict[Label, str]:
        """Remember an output; the labels that the session did not have before, with their cause."""
        tool = subject.tool
        self._calls += 1
        labels = _labels(call.session, subject, guard)
        source = _source(tool.name, labels, self._calls, call.id)
        self.index.add(source, text_of(result.content), result.value)
        cause = f"{tool.name} #{self._calls}"
        return {each: cause for each in SESSION_LABELS & labels if each not in self.labels}

    def load(
        self,
        labels: Mapping[str, str],
        messages: Iterable[tuple[str | None, Message]],
        tool_labels: Mapping[str, frozenset[Label]],
    ) -> None:
        """What was kept of the session. Of a tool that is not there any more nothing is known."""
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

    # What goes out.

    def flow(self, subject: Subject, guard: GuardSettings, answered: frozenset[str]) -> Flow:
        """Where the destinations of a call come from."""
        tool = subject.tool
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
                rest = [
                    name
                    for name in subject.checked.arguments
                    if name not in names and not destinations.is_option_name(name)
                ]
                found += self._of_texts(subject, rest, guard, found)
        return Flow(
            outward=tool.outward or is_online(subject),
            destroys=tool.destructive,
            labels=dict(self.labels),
            destinations=found,
            takes_destinations=takes_destinations,
            carries_secret=self._may_leak(found) and _carries_secret(subject),
            hosts=hosts,
            is_answered=bool(answered) and _NO_DESTINATION in answered,
        )

    @staticmethod
    def _may_leak(found: tuple[Trace, ...]) -> bool:
        """Whether it matters what the texts of a call contain: it may go to a stranger."""
        return not found or not all(trace.vouched for trace in found)

    def traces(self, subject: Subject) -> tuple[Trace, ...]:
        """Where all values of a call come from: short ones whole, of long texts their parts."""
        names = parameters(subject, self.settings)
        if subject.enclosure is not None:
            return self._of_command(subject, self.settings, frozenset())[0]
        return tuple(self._all_traces(subject, frozenset(names)))

    def _all_traces(self, subject: Subject, names: frozenset[str]) -> Iterator[Trace]:
        arguments = subject.checked.arguments
        for name, value in destinations.values_of(arguments, tuple(arguments)):
            is_destination = name in names
            if len(value) <= _SHORT:
                source = self._find(name, value, subject.tool.name)
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
        tool = subject.tool.name
        return tuple(self._destination(name, each, guard, answered, tool) for name, each in values)

    def _nested(
        self,
        subject: Subject,
        names: tuple[str, ...],
        guard: GuardSettings,
        answered: frozenset[str],
    ) -> tuple[Trace, ...]:
        """Destinations inside parameters that are none themselves: `message.to`."""
        nested = destinations.nested_names(subject.checked.arguments, names)
        values = destinations.values_of(nested, tuple(nested)) if nested else ()
        return tuple(self._destination(name, each, guard, answered) for name, each in values)

    def _destination(
        self, name: str, value: str, guard: GuardSettings, answered: frozenset[str], tool: str = ""
    ) -> Trace:
        if guard.destinations and _is_in_settings(value, guard):
            return Trace(name, value, _SETTINGS, True)
        if answered and destinations.remembered(value) in answered:
            return Trace(name, value, _ANSWER, True)
        return Trace(name, value, self._find(name, value, tool), True)

    def _of_texts(
        self,
        subject: Subject,
        names: Iterable[str],
        guard: GuardSettings,
        found: tuple[Trace, ...],
    ) -> tuple[Trace, ...]:
        """What of the texts that go out is as good as a destination. A link in them sends their
        reader somewhere. What was copied word for word out of untrusted content goes only where
        the user said, in words or settings."""
        traces = []
        is_said = bool(found) and all(trace.source.kind in _SAID for trace in found)
        for name, text in destinations.texts_of(subject.checked.arguments, tuple(names)):
            links = forms.links_in(text)
            for link in links[:_LINKS]:
                traces.append(self._destination(f"link in {name}", link, guard, frozenset()))
            if len(links) > _LINKS:
                traces.append(Trace(name, f"{len(links):,} links", NOWHERE, True))
            copied = None if is_said else self._copied_from(name, text)
            if copied is not None:
                traces.append(Trace(name, text[:_SHORT], copied, True))
        return tuple(traces)

    def _copied_from(self, name: str, text: str) -> Source | None:
        """The untrusted content in which a short text stands, or a part of a long one. A word or
        two stand in many texts."""
        is_phrase = len(text) <= _SHORT and len(text.split()) > 2
        sources = [self._find(name, text)] if is_phrase else []
        return next((each for each in (*sources, *self.index.parts(text)) if each.untrusted), None)

    def _find(self, name: str, value: str, tool: str = "") -> Source:
        return self.index.trace(name, value, tool) if self.is_told else UNKNOWN

    def _of_command(
        self, subject: Subject, guard: GuardSettings, answered: frozenset[str]
    ) -> tuple[tuple[Trace, ...], tuple[str, ...]]:
        """The destinations of a command: what the settings let it reach, itself where the user
        wrote it, or the hosts in its words, which are then all that it reaches."""
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
        whole = Trace("command", text, self._find("command", text), True)
        if whole.vouched or subject.enclosure is None or not subject.enclosure.is_online:
            return (whole,), ()  # nothing would keep it from other hosts
        found = addresses_in(text)
        traces = tuple(self._destination("host", each, guard, answered) for each in found)
        return (traces, tuple(dict.fromkeys(found.values()))) if traces else ((whole,), ())


def parameters(subject: Subject, guard: GuardSettings) -> tuple[str, ...]:
    """The parameters of a call that say where its effect goes."""
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


def is_online(subject: Subject) -> bool:
    """Whether what the tool starts may reach the network."""
    return subject.tool.effect is SideEffects.EXECUTE and not subject.contained


def destinations_of(subject: Subject, guard: GuardSettings) -> tuple[str, ...]:
    """Where a call goes that sends something out or destroys: what a narrow answer covers. Not of a
    command, which can reach more than its words say."""
    if not subject.tool.is_guarded or subject.enclosure is not None:
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


def _is_private(path: ResolvedPath, beside: set[str]) -> bool:
    """A file beside the workspace, or one that is named as secrets are."""
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
    """Whether the settings name an address or a host; of other values, only exactly this one."""
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
