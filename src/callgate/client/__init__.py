"""A running instance from another Python program: `callgate.connect()`.

    connecting   finds the instance; `async with` gives a `RemoteGate`, `with` a `BlockingGate`
    remote       the words of `Gate`, each a request over the socket
    blocking     the same for programs without an event loop, from any number of threads
    link         one connection: requests out, each answer to whoever asked, and signs of life
    reaching     when to try a full socket again, and why one is not reached

Start with `connecting`. A connection that ended is not made again behind anyone's back: only
the program knows whether a call that may have run should be made once more.
"""
