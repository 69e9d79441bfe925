"""Search in documents: file_ingest, file_upload, search.

    workspace files, ingested documents -> extraction -> index (SQLite FTS5) -> search

The index of a workspace lies in CALLGATE_HOME. It is brought up to date by every search, and what
it finds is judged again before it is shown. Start with `searching`, then `index`.

Where the settings name somebody who makes vectors, `meaning` finds what is meant as well:
`passages` cuts the texts, `vectors` keeps theirs in the same index.
"""
