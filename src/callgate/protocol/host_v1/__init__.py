"""Tools in another process, version 1, both sides, without I/O.

               bytes -> ndjson -> strict_json -> frames          frames -> bytes
    runtime    `RuntimeWire.receive`: answers, events, requests  `RuntimeWire.encode`
    host       `HostWire.receive`: requests and faults           `HostWire.encode`

Start with `frames`: three shapes of line, and every method as a struct of its parameters.
`runtime` and `host` keep track of the requests of one process. `values` converts a host's tools,
outputs, parts and failures into our values.
`protocols/host_v1/README.md` describes the protocol for other languages.
"""
