"""Search in documents: file_ingest, file_upload, search.

    workspace files, ingested documents -> extraction -> index (SQLite FTS5) -> search

The index of a workspace is in CALLGATE_HOME. Every search updates it, and checks the rules for each
hit again before it shows it. Start with `searching`, then `index`.

If the settings name an embedding provider, `meaning` adds semantic search: `vectors` splits
the texts into passages, and stores their vectors in the same index.
"""
