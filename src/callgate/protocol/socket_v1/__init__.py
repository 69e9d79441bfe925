"""The local socket's protocol, version 1, both sides, without the socket.

              bytes -> ndjson -> strict_json -> frames         frames -> bytes
    server    `ServerWire.receive`: requests and faults        `ServerWire.encode`
    client    `ClientWire.receive`: answers and events         `ClientWire.encode`

Start with `frames`, which has every message as a struct. `server` and `client` keep track of
the request ids of one connection. `results`, `tool_events` and `descriptors` turn our values
into what the frames carry. `protocols/socket_v1/README.md` is the same for other languages.
"""
