"""What the output of a tool is: the labels by which a session remembers what it has read."""

from __future__ import annotations

from enum import StrEnum


class Label(StrEnum):
    PRIVATE = "private"
    """Mail, documents, accounts, secrets: not meant for strangers."""
    UNTRUSTED = "untrusted"
    """Strangers can have written it: web pages, mail, messages, results of foreign servers."""
    VOUCHED = "vouched"
    """As good as the user's words: an address book, the data of the user's own account."""
    WORKSPACE = "workspace"
    """Files of the workspace, and what commands print there."""
    MEMORY = "memory"
    """What was remembered in earlier sessions."""


SESSION_LABELS = frozenset({Label.PRIVATE, Label.UNTRUSTED})
"""Those that a session keeps once it has read such content."""
