"""What the settings say of the tools that we ship: `[google]`, `[web]`, `[memory]`,
`[documents]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Bytes = Annotated[int, msgspec.Meta(ge=1024, le=100 * 1024 * 1024)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]

SearchKind = Literal["searxng", "brave", "tavily", "ddgs"]
USUAL_VARIABLES = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}
"""Where the key of a service lies if nobody says otherwise."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class WebTable(_Table, frozen=True):
    """`[web]`: what may be reached, how much is taken, and who searches."""

    allow: list[str] = []
    """Hosts and networks that are reached although they are not public."""
    only: list[str] | None = None
    """No other hosts than these; absent: every public one."""
    timeout_s: Seconds = 30.0
    """For one call, with all its redirects."""
    max_bytes: Bytes = 5 * 1024 * 1024
    """What is taken of an answer; the rest is left where it is."""
    max_redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 8
    """How often a page may lead elsewhere."""
    search: SearchKind | None = None
    """Who searches for `web_search`."""
    search_url: str | None = None
    """Of your own SearXNG; or in place of a service's usual address."""
    key_env: str | None = None
    """The variable that holds the key of the search service."""


class MemoryTable(_Table, frozen=True):
    """`[memory]`: what an agent notes for later."""

    max_entries: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    """Of the user, and of each workspace."""
    max_chars: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 2_000
    """Of one entry."""
    told_chars: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    """How much of it a model is told at the beginning of each turn; 0: it has to search."""


class EmbeddingsTable(_Table, frozen=True):
    """`[documents.embeddings]`: who makes vectors, by which `search` also finds what is meant.

    The texts of files and documents go there, so a workspace cannot say it."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """As the server calls it."""
    endpoint: str
    """Up to and with the version, such as `http://127.0.0.1:11434/v1`."""
    insecure_http: bool = False
    """Plain http:// also to other machines: whoever is on the way reads key and texts."""
    key_env: str | None = None
    """The variable that has the key."""
    key_command: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    """A program that prints the key; no shell reads it."""
    timeout_s: Seconds = 15.0
    """How long the server may be silent."""
    refresh_s: Seconds = 20.0
    """How long a search may wait for vectors; the next one goes on."""
    max_new: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2_000
    """Passages that one search sends."""
    max_passages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100_000
    """Of a workspace; what is beyond is found by its words alone."""
    min_similarity: Annotated[float, msgspec.Meta(ge=-1, le=1)] = 0.25
    """What is less near is not found; models differ in what is near."""
    query_prefix: str = ""
    """What a model wants before a query, such as `search_query: `."""
    document_prefix: str = ""
    """What it wants before a passage."""


class DocumentsTable(_Table, frozen=True):
    """`[documents]`: what `search` looks into."""

    max_files: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 50_000
    """Of a workspace."""
    max_bytes: Bytes = 2 * 1024 * 1024
    """Of one file; of a PDF ten times as much."""
    refresh_s: Seconds = 20.0
    """How long a search may take to read what is new; it goes on the next time."""
    embeddings: EmbeddingsTable | None = None


class GoogleTable(_Table, frozen=True):
    """`[google]`: the account that the tools for Google use."""

    client_file: str | None = None
    """As Google's console gives it out; counts from the home."""
    account: str | None = None
    """The usual one, instead of the one that was logged in first."""
    endpoint: str | None = None
    """Of all services, where something else stands in for Google."""
    auth_endpoint: str | None = None
    """Where a person logs in, instead of at Google."""
    token_endpoint: str | None = None
    """Where tokens come from, instead of Google."""
    revoke_endpoint: str | None = None
    """Where tokens are given back, instead of to Google."""
