"""The tools of documents, and those of files by the names that some models were taught."""

from __future__ import annotations

from functools import partial

from callgate.packs.settings import DocumentsTable
from callgate.packs.tools import Pack, PackContext, PackTool, factories
from callgate_catalogue.documents.catalogue import CATALOGUE, FILES
from callgate_catalogue.documents.dependencies import Documents


def pack(context: PackContext) -> Pack:
    table: DocumentsTable = context.settings
    embeddings = table.embeddings
    open_embedder = None if embeddings is None else partial(context.open_embedder, embeddings)
    documents = Documents(context.home, table, open_embedder)
    tools = [PackTool(factory=each) for each in factories(CATALOGUE, documents)]
    files = [PackTool(factory=each, listed=False) for each in factories(FILES, documents)]
    return Pack(tools=[*tools, *files])
