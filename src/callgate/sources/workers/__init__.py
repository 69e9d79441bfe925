"""Remote workers, as a server sees them: tokens, connections, and the calls that run there.

    tokens      who may connect, to which pools          (shared entries of the store)
    fences      which connection of a worker counts      (the same)
    directory   which workers there are, on any server   (the same)
    links       one connection: requests out, answers and events in
    pools       the connected workers of this server, and which of them gets a call
    placing     a call of a session whose workspace lives in a pool

Start with `pools`. The other end is `instance.worker`.
"""
