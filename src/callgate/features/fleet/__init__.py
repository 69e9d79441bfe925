"""Several servers on one PostgreSQL store, and remote workers.

    directory        the servers, and the number of approvers at each of them
    peers, carrying  find the owner of a request, and forward it there once
    shared_homes     rules, trust and pins of all homes; `mirror` copies them to files
    pools            the connected workers of this server, and the choice of a worker for a call
    placing          a call of a session whose workspace is in a pool
    worker/          the other end: a process that runs calls in its workspaces

A session has one owner, the process that holds its lock in the store. Forwarded requests are
signed as defined in `protocol.carried_requests`.
"""
