"""Tools in another process, version 1, both sides, without the process.

               bytes -> ndjson -> strict_json -> frames          frames -> bytes
    runtime    `RuntimeWire.receive`: answers, events, asks      `RuntimeWire.encode`
    host       `HostWire.receive`: requests and faults           `HostWire.encode`

Start with `frames`: three shapes of line, and every method as a struct of its parameters.
`runtime` and `host` keep track of the requests of one process. `schemas`, `values`, `parts`
and `failures` turn what a host says of its tools into our values.
`protocols/host_v1/README.md` is the same for other languages.
"""
