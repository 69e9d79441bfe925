"""Mail, files, calendar, documents, sheets and tasks of Google accounts.

    catalogue (a table: name, schema, effect, function) -> tool -> gmail, drive, ... -> requests

Registration loads only a table; the request code is loaded with the first call. Start with
`catalogue`, then `requests`. `oauth` logs in; `accounts` stores the accounts and their tokens.
"""
