"""The local socket's protocol, version 1, both sides, without I/O.

              bytes -> ndjson -> strict_json -> frames         frames -> bytes
    server    `ServerWire.receive`: requests and faults        `ServerWire.encode`
    client    `ClientWire.receive`: answers and events         `ClientWire.encode`

Start with `frames`, which has every message as a struct. `server` and `client` track the request
ids of one connection. `values` converts our values into values of the frames.
`protocols/socket_v1/README.md` describes the protocol for other languages.
"""
