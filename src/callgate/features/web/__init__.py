"""An instance over HTTP and WebSocket. The contract is protocols/http_v1/README.md.

    server -> guard (who is it, from where?) -> application -> operations, by resource -> Runtime
                                                           -> stream (WebSocket) <- fanout <- store

Start with `operations`: a route is one value in a table. The router and the OpenAPI description are
built from this table.
"""
