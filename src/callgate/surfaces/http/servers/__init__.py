"""Several servers on one store: who they are, and how a request gets to the owner of a session.

    directory     which servers there are, who is at each of them to be asked
    carrying      a request sent on to the owner, and its answer sent back

A session has one owner, the process that holds its lock in the store. `owners` asks each route
that is bound to an owner where that is; what is not here is carried there, once, signed as
`protocol.carried_requests` says.
"""
