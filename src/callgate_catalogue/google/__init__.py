"""Mail, files, calendar, documents, sheets and tasks of Google accounts.

    catalogue (a table: name, schema, effect, function) -> tool -> gmail, drive, ... -> requests

Having them registered costs a table: what makes requests is loaded with the first call. Start
with `catalogue`, then `requests`. `oauth` logs in; `accounts` knows who is logged in.
"""
