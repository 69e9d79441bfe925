"""What the web tools need: their settings, the key of the search service, name resolution."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from callgate.packs.settings import USUAL_VARIABLES, WebTable
from callgate.packs.tools import ModelError

if TYPE_CHECKING:  # loaded with the first call
    from callgate.packs.tools import Key
    from callgate_catalogue.web.connecting import Resolve
    from callgate_catalogue.web.fetching import Limits
    from callgate_catalogue.web.reach import Reach


class Web:
    def __init__(
        self,
        table: WebTable,
        key: Callable[[], Key | None] = lambda: None,
        resolve: Resolve | None = None,
    ) -> None:
        """`key` finds that of the search service; `resolve` stands in for the system's names."""
        self.table = table
        self.key = key
        self._resolve = resolve

    @cached_property
    def reach(self) -> Reach:
        from callgate_catalogue.web.reach import Reach  # lazy: with the first call  # noqa: PLC0415

        return Reach.of(self.table.allow, self.table.only)

    @cached_property
    def limits(self) -> Limits:
        from callgate_catalogue.web.fetching import Limits  # lazy: with the first call  # noqa: PLC0415

        return Limits(
            timeout_s=self.table.timeout_s,
            max_bytes=self.table.max_bytes,
            max_redirects=self.table.max_redirects,
        )

    @cached_property
    def resolve(self) -> Resolve:
        from callgate_catalogue.web.connecting import look_up  # lazy: with the first call  # noqa: PLC0415

        return self._resolve or look_up

    def why_no_search(self) -> str | None:
        """What is missing for a search, and what to do about it; None where nothing is."""
        kind = self.table.search
        if kind is None:
            return (
                "no search service is configured; name one in [web] search of settings.toml:"
                " searxng, brave, tavily or ddgs"
            )
        if kind == "searxng" and self.table.search_url is None:
            return "the address of SearXNG is missing: [web] search_url of settings.toml"
        if kind == "ddgs" and not _is_installed("ddgs"):
            return "ddgs is not installed: pip install 'callgate[search]'"
        return self._why_no_key(kind) if kind in USUAL_VARIABLES else None

    def _why_no_key(self, kind: str) -> str | None:
        try:
            found = self.key()
        except ModelError as error:
            return f"the key of {kind} cannot be used: {error.message.removesuffix('.')}"
        return None if found else f"the key of {kind} is missing: callgate keys set {kind}"


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec  # lazy: few ask  # noqa: PLC0415

    return find_spec(package) is not None
