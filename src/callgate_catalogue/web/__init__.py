"""The web: web_search, web_fetch, api_call.

    catalogue (a table) -> pages, calls, searches -> fetch -> connect -> reach -> an address

Whatever a model asks for goes through `fetching.fetch`, and every connection that it makes, also
after a redirect, through `connecting`: a name is looked up once, each address is judged by
`reach`, and that very address is connected to. Start with `reach`, then `fetching`.
"""
