"""A remote worker: a process that connects to a server, and runs calls in its workspaces.

    connection   connects, authenticates, reconnects                      (`callgate worker`)
    service      frames in, answers and events out, over one connection
    calls        one call within the workspace boundary, sandbox and undo history of this machine

A worker has no store and no audit log: the server decides, asks and records. The other end is
`features.fleet.pools`.
"""
