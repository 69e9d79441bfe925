"""The web: web_search, web_fetch, api_call.

    pack (a table) -> pages, calls, searches -> fetching -> reach -> an address

Every request of a model goes through `fetching.fetch`, and every connection, also after a redirect,
through its backend: it looks up a name once, checks each address with `reach`, and connects to
exactly that address. Start with `reach`, then `fetching`.
"""
