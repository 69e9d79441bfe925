"""The Agent Client Protocol, version 1, as values: messages between an editor and an agent.

    initialize        the first exchange, which is answered before other modules are loaded
    requests          requests of a client to its agent, and the answers
    updates           updates of a session, and the values that they share with requests
    client_requests   requests of an agent to its client, and the answers

Unknown keys are skipped. `_meta` is a separate field (`meta`), and its content never counts as an
argument.
"""
