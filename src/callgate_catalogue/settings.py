"""Settings of the packages, the shared state of their tools, and the names of their directories."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from callgate.packs.settings import (
    EmbeddingsTable,
    SettingsPart,
    Table,
    address_problem,
    hosts_problem,
)

if TYPE_CHECKING:
    from callgate.packs.tools import Embedder

Bytes = Annotated[int, msgspec.Meta(ge=1024, le=100 * 1024 * 1024)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]


class DocumentsTable(Table, frozen=True):
    """`[documents]`: the index of `search`."""

    max_files: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 50_000
    """Maximum number of indexed files of a workspace."""
    max_bytes: Bytes = 2 * 1024 * 1024
    """Maximum size of an indexed file; PDF files may have ten times this size."""
    refresh_s: Seconds = 20.0
    """Time that a search may spend on reading new files; the next search continues."""
    embeddings: EmbeddingsTable | None = None


class DocumentsSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "documents"
    documents: DocumentsTable = DocumentsTable()

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        embeddings = self.documents.embeddings
        if embeddings is not None and (wrong := address_problem(embeddings.endpoint)):
            yield ("documents", "embeddings", "endpoint"), wrong


class Documents(msgspec.Struct, frozen=True):
    """Dependencies of the document tools."""

    home: str
    table: DocumentsTable
    open_embedder: Callable[[], Embedder] | None = None
    """Open the embedder; None if the settings name none. May run a program that prints the key."""


class GoogleTable(Table, frozen=True):
    """`[google]`: the account that the tools for Google use."""

    client_file: str | None = None
    """OAuth client file from Google's console; relative paths start at the home."""
    account: str | None = None
    """Default account; absent: the account that was logged in first."""
    endpoint: str | None = None
    """Address of all services, for a server other than Google."""
    auth_endpoint: str | None = None
    """Address for logins, for a server other than Google."""
    token_endpoint: str | None = None
    """Address that issues tokens, for a server other than Google."""
    revoke_endpoint: str | None = None
    """Address that revokes tokens, for a server other than Google."""


class GoogleSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "google"
    google: GoogleTable = GoogleTable()


class MemoryTable(Table, frozen=True):
    """`[memory]`: notes of an agent for later sessions."""

    max_entries: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    """Maximum number of entries of the user, and of each workspace."""
    max_chars: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 2_000
    """Maximum length of one entry."""
    told_chars: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    """Characters of memory in the prompt of each turn; 0: the model has to search."""


class MemorySettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "memory"
    memory: MemoryTable = MemoryTable()


class Notes(msgspec.Struct, frozen=True):
    """Shared state of the tools: their directory and settings."""

    home: str
    table: MemoryTable


SearchKind = Literal["searxng", "brave", "tavily", "ddgs"]
USUAL_VARIABLES = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}
"""Variables of the keys of search services."""


class WebTable(Table, frozen=True):
    """`[web]`: reachable hosts, maximum sizes and the search service."""

    allow: list[str] = []
    """Hosts and networks that are permitted although they are not public."""
    only: list[str] | None = None
    """The only permitted public hosts. Absent: every public host."""
    timeout_s: Seconds = 30.0
    """Time limit for one call, including its redirects."""
    max_bytes: Bytes = 5 * 1024 * 1024
    """Maximum response size in bytes; longer responses are truncated."""
    max_redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 8
    """Maximum number of redirects."""
    search: SearchKind | None = None
    """Search service of `web_search`."""
    search_url: str | None = None
    """Address of your SearXNG server, or another address of the search service."""
    key_env: str | None = None
    """Environment variable with the key of the search service."""


class WebSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "web"
    web: WebTable = WebTable()

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        for key, entries in (("allow", self.web.allow), ("only", self.web.only or [])):
            for text in entries:
                wrong = (
                    _network_problem(text)
                    if key == "allow" and "/" in text
                    else hosts_problem([text])
                )
                if wrong is not None:
                    yield ("web", key), wrong
        if self.web.search_url and (wrong := address_problem(self.web.search_url)):
            yield ("web", "search_url"), wrong


def _network_problem(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        return str(error)
    return None


_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def directory_name(workspace: str) -> str:
    """Return `NAME-HASH`. The hash distinguishes workspaces of one name, also behind links."""
    real = os.path.realpath(workspace)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    name = _OTHER.sub("-", os.path.basename(real)).strip("-.")[:40] or "root"
    return f"{name}-{digest}"
