"""The request of a search, and which files it may show."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from callgate import ToolError, WorkspaceFileAPI
from callgate.packs.files import is_protected
from callgate_catalogue.documents.index import Origin


class SearchRequest(NamedTuple):
    query: str
    origins: tuple[Origin, ...]
    below: str
    """A directory of the workspace with a slash behind it, or nothing."""
    limit: int
    files: WorkspaceFileAPI
    directory: str
    """Of the index."""
    should_stop: Callable[[], bool]

    def may_show(self, origin: Origin, path: str) -> bool:
        """A rule may have changed since a file was read."""
        if origin == "documents":
            return True
        try:
            return not is_protected(path) and self.files.judged(path, "read") is not None
        except ToolError:  # denied, or gone
            return False
