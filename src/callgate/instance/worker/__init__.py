"""A remote worker: a process that dials a server, and runs calls in its own workspaces.

    connection   dials, says who it is, tries again when it is lost       (`callgate worker`)
    service      frames in, answers and events out, over one connection
    calls        one call within the wall, the sandbox and the history of this machine
    policies     what binds it: the server's rules, and what the settings here deny

It has no store and no audit log: the server decides, asks and records. The other end is
`sources.workers`.
"""
