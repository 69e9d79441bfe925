"""The registry: an ordered list of sources, whose tools are checked once and found by name.

A name belongs to the source that had it first. A tool of one session exists only for that session
and its sub-agents. Two sessions may have different tools of one name. A tool of all sessions takes
precedence over a tool of a session, even if it came later.

A lazy source reserves its names from the start, but is loaded on the first lookup of a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from callgate.core.commands import CONNECT_HOST
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolRegistrationError
from callgate.core.schemas import MAX_BYTES
from callgate.core.sessions import Mode, PoolWorkspace, Session
from callgate.core.tools import ToolFactory
from callgate.dispatch.tools.checks import SLOW, Registered, ToolNames, examine, fold, spellings
from callgate.dispatch.tools.sources import FixedTools, SourceTool, Tags, ToolSource

__all__ = ["Registered", "Registry"]


class _Entry:
    """A source and its registered tools."""

    def __init__(self, source: ToolSource) -> None:
        self.source = source
        self.tools: dict[SourceTool, Registered | None] = {}
        """None: its registration failed, or it was unregistered."""
        self.stop_listening: Callable[[], None] = lambda: None
        self.is_read = False
        self.is_being_read = False
        self.is_outdated = False
        """Whether it changed while it was read."""
        self._names = frozenset(name for name in source.names if not name.endswith("*"))
        prefixes = (name.removesuffix("*") for name in source.names if name not in self._names)
        self._prefixes = tuple(prefixes)

    def may_have(self, name: str) -> bool:
        return name in self._names or name.startswith(self._prefixes)

    def registered(self) -> Iterator[Registered]:
        return (tool for tool in self.tools.values() if tool is not None)


class Registry:
    def __init__(self, *, max_argument_bytes: int = MAX_BYTES) -> None:
        self._max_argument_bytes = max_argument_bytes
        self._listeners: set[Callable[[], None]] = set()
        self._entries: list[_Entry] = []
        self._unread: list[_Entry] = []
        """Lazy sources that are not loaded."""
        self._reading: _Entry | None = None
        self.names = ToolNames()
        self._everyone = self.names.everyone
        self._in_order: tuple[Registered, ...] | None = None
        """The tools of all sessions; None: to be rebuilt."""
        self._disabled: dict[str, str] = {}
        self.tags = Tags()
        self.pool_refusal: Callable[[Registered, PoolWorkspace], str | None] | None = None
        """Returns the reason for which a tool cannot use a workspace on remote workers."""

    # --- sources ------------------------------------------------------------------------------

    def add(self, source: ToolSource) -> None:
        """Add a source after all others. A source that is added during the load of another source
        comes before that one. Raises a `ToolRegistrationError` that the source does not handle."""
        self._add(_Entry(source))

    def _add(self, entry: _Entry) -> None:
        source = entry.source
        entries, before = self._entries, self._reading
        entries.insert(len(entries) if before is None else entries.index(before), entry)
        entry.stop_listening = source.listen(partial(self._changed, entry))
        if source.is_lazy:
            self._unread.append(entry)
            if any(map(entry.may_have, self._everyone)):
                self._read(entry)  # report the name clash now
            return
        try:
            self._read(entry)
        except BaseException:
            self._drop(entry)
            raise

    def remove(self, source: ToolSource) -> None:
        """Remove a source with its tools; running calls finish. Idempotent."""
        for entry in [each for each in self._entries if each.source is source]:
            self._drop(entry)
            if self._take(entry, ()):
                self._tell()

    def register(self, factory: ToolFactory) -> Registered:
        """Add a source of one tool. Raises `ToolRegistrationError` if its definition is wrong."""
        entry = _Entry(FixedTools((factory,)))
        self._add(entry)
        (tool,) = entry.registered()
        return tool

    def unregister(self, name: str) -> None:
        """Remove a tool; running calls finish. An unknown name is ignored."""
        self._read_for(name)
        tool = self._everyone.get(name)
        if tool is None or tool.name != name:
            return
        for entry in self._entries:
            for each in [each for each, found in entry.tools.items() if found is tool]:
                entry.tools[each] = None
                self.names.release(tool)
                if isinstance(entry.source, FixedTools) and not any(entry.tools.values()):
                    self._drop(entry)
                self._tell()
                return

    def load_all(self) -> None:
        """Load every lazy source."""
        for entry in tuple(self._unread):
            self._read(entry)

    async def close(self) -> None:
        """Close every source. Idempotent."""
        for entry in tuple(self._entries):
            await entry.source.close()

    def _read_for(self, *names: str) -> bool:
        """Load the sources that may have these names. Returns whether there were any."""
        matching = [each for each in self._unread if any(map(each.may_have, names))]
        for entry in matching:
            self._read(entry)
        return bool(matching)

    def _changed(self, entry: _Entry) -> None:
        entry.is_outdated = True
        if entry.is_read and not entry.is_being_read:
            self._read(entry)

    def _read(self, entry: _Entry) -> None:
        """Register the present tools of a source, in place of its earlier ones."""
        if entry.is_being_read:
            return  # a source loaded on its behalf looked up one of its names
        is_first, has_changed = not entry.is_read, False
        entry.is_read = entry.is_being_read = entry.is_outdated = True
        if entry in self._unread:
            self._unread.remove(entry)
        reading, self._reading = self._reading, entry
        try:
            while entry.is_outdated:
                entry.is_outdated = False
                has_changed |= self._take(entry, entry.source.tools())
        except BaseException:
            if is_first:
                self._take(entry, ())
                entry.is_read = False
                if entry.source.is_lazy:
                    self._unread.append(entry)  # its names stay reserved
            raise
        finally:
            self._reading = reading
            entry.is_being_read = False
            self._in_order = None
            if has_changed:
                self._tell()

    def _take(self, entry: _Entry, offered: Iterable[SourceTool]) -> bool:
        """Update the tools of a source. Returns whether a tool of all sessions came or went."""
        tools, has_changed = dict.fromkeys(offered), False
        for each in [each for each in entry.tools if each not in tools]:
            tool = entry.tools.pop(each)
            if tool is not None:
                self.names.release(tool)
                has_changed |= tool.session_id is None
        for each in tools:
            if entry.is_outdated:
                break  # the source is read again
            if each not in entry.tools:
                tool = entry.tools[each] = self._claim(entry, each)
                has_changed |= tool is not None and tool.session_id is None
        entry.tools = {each: entry.tools[each] for each in tools if each in entry.tools}
        return has_changed

    def _drop(self, entry: _Entry) -> None:
        entry.stop_listening()
        self._entries.remove(entry)
        if entry in self._unread:
            self._unread.remove(entry)

    def _claim(self, entry: _Entry, offered: SourceTool) -> Registered | None:
        try:
            tool = examine(offered, self._max_argument_bytes)
            self._read_for(*map(fold, spellings(tool)))
            self.names.claim(tool)
        except ToolRegistrationError as error:
            entry.source.refused(offered, error)
            return None
        return tool

    # --- lookups ------------------------------------------------------------------------------

    def find(self, name: str, session: Session | None = None) -> Registered | None:
        """Return the tool with this name: of all sessions, else of this session."""
        tool = self._everyone.get(name)
        if tool is not None:
            return tool
        if self._unread and self._read_for(str(name)):
            return self.find(name, session)
        tool = self.names.of_session(session).get(name)
        if tool is not None:
            return tool
        unnamed = [entry for entry in self._unread if not entry.source.names]
        for entry in unnamed:
            self._read(entry)
        return self.find(name, session) if unnamed else None

    def __iter__(self) -> Iterator[Registered]:
        """Yield the tools of all sessions, in the order of their sources."""
        self.load_all()
        return iter(self._loaded())

    def _loaded(self) -> tuple[Registered, ...]:
        if self._in_order is None:
            tools = (tool for entry in self._entries for tool in entry.registered())
            self._in_order = tuple(tool for tool in tools if tool.session_id is None)
        return self._in_order

    def of(self, session: Session) -> list[Registered]:
        """Return every tool that exists for a session, visible or not."""
        names = dict.fromkeys(tool.name for tool in self.names.of_session(session).values())
        found = (self.find(name, session) for name in names)
        return [*self, *(tool for tool in found if tool is not None and tool.session_id)]

    def with_reasons(self, session: Session) -> list[tuple[Registered, str | None]]:
        """Every tool that there is for a session, and why the session does not see it."""
        return [(tool, self.unusable_because(tool, session)) for tool in self.of(session)]

    def listed(self, session: Session) -> list[Registered]:
        """Return the tools that a session lists."""
        if session.mode is Mode.NONE:
            return []
        return [
            tool
            for tool in self.of(session)
            if tool.listed and self.unusable_because(tool, session) is None
        ]

    def file_tools(self) -> dict[str, SideEffects]:
        """Return the tools that read and write files without commands, by every name."""
        return {
            name: tool.effect
            for tool in self._loaded()
            if tool.path_params and not tool.definition.sandboxed and tool.effect not in SLOW
            for name in spellings(tool)
        }

    # --- visibility ---------------------------------------------------------------------------

    def disable_only(self, names: Collection[str], reason: str) -> None:
        """Hide exactly these tools from all sessions; they stay registered."""
        changed = {*self._disabled} != {*names}
        self._disabled = dict.fromkeys(names, reason)
        self.names.version += 1
        if changed:
            self._tell()

    def hidden_because(self, tool: Registered, session: Session) -> str | None:
        """Return the reason for which a session does not see a tool; None if it does."""
        if self._disabled and (reason := self._disabled.get(tool.name)) is not None:
            return reason
        if tool.everyone_sees_it:
            return None
        definition = tool.definition
        if definition.required_tags and (missing := self.tags.missing(definition, session)):
            return self.tags.explain(missing) or f"needs {', '.join(sorted(missing))}"
        if definition.hidden_from_workers and session.is_worker:
            return "not for sub-agents"
        return self.missing_because(tool, session)

    def unusable_because(self, tool: Registered, session: Session) -> str | None:
        """Return the reason for which a session does not list a tool: it is hidden, or the pool of
        the workspace would refuse it. A call by name gets the pool's own refusal."""
        if tool.name == CONNECT_HOST:
            return "only callgate calls it"
        hidden = self.hidden_because(tool, session)
        if hidden is not None or session.pool is None or self.pool_refusal is None:
            return hidden
        return self.pool_refusal(tool, session.pool)

    def missing_because(self, tool: Registered, session: Session) -> str | None:
        """Return the requirement of a tool that a session does not meet; None if it meets all."""
        if tool.name in self._disabled:
            return None
        if missing := self.tags.missing(tool.definition, session):
            return self.tags.explain(missing)
        return None if tool.why_not is None else tool.why_not(session)

    # --- changes ------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function after changes of the tools of all sessions. Returns a function that
        removes it."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _tell(self) -> None:
        self._in_order = None
        for listener in tuple(self._listeners):
            listener()
