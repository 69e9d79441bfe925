"""What reading one document gives, and why it may give nothing."""

from __future__ import annotations

from typing import Any

from callgate.protocol.toolcalls.values import Note, Rule


class Broken(Exception):
    """What is there cannot be read. `at` is where reading stopped."""

    def __init__(self, rule: Rule, message: str, at: int, *, begun: bool, depth: int) -> None:
        super().__init__(message)
        self.rule = rule
        self.at = at
        self.begun = begun
        """Some of it was read: it was meant as JSON, and is not just a bracket in prose."""
        self.depth = depth
        """How many brackets are open."""


class Document:
    """What was read. Mutable only while it is read."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.value: Any = None
        self.notes: dict[Rule, Note] = {}
        """The first of each rule."""
        self.starts: dict[int, int] = {}
        """Where each closed container begins, by its identity; only those near the top."""
        self.mended: set[int] = set()
        """Identities of the calls within which something was forgiven."""
        self.requoted: set[int] = set()
        """Those of them in which a text has other quotes: where it ends may be a guess."""
        self.around = False
        """Something was forgiven outside of all calls."""
        self.cut = False
        self.duplicate: int | None = None
        """Where a key stands for the second time."""
