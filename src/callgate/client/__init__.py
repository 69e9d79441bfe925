"""Client for a running instance: `callgate.connect()`.

    blocking     `connect`: `async with` gives a `RemoteGate`, `with` a `BlockingGate`
    remote       the methods of `Gate`, each a request over the socket
    link         one connection: requests, replies, keep-alive checks, and events for their readers
    errors       errors of a connection, and retries while a socket is full

Start with `blocking`. A connection that ended is not reopened automatically: only the program
knows whether a call that may have run should be repeated.
"""
