"""`[web]`: what the web tools may reach, how much they take, and who searches for them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Bytes = Annotated[int, msgspec.Meta(ge=1024, le=100 * 1024 * 1024)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]

SearchKind = Literal["searxng", "brave", "tavily", "ddgs"]
USUAL_VARIABLES = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}
"""Where the key of a service lies if nobody says otherwise."""


class WebTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow: list[str] = []
    """Hosts and networks that are reached although they are not public."""
    only: list[str] | None = None
    """No other hosts than these; None: every public one."""
    timeout_s: Seconds = 30.0
    """For one call, with all its redirects."""
    max_bytes: Bytes = 5 * 1024 * 1024
    """What is taken of an answer; the rest is left where it is."""
    max_redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 8
    search: SearchKind | None = None
    search_url: str | None = None
    """Of your own SearXNG; or in place of a service's usual address."""
    key_env: str | None = None
    """The variable that holds the key of the search service."""
