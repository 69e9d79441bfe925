"""The Agent Client Protocol, version 1, as values: what an editor and an agent say to each other.

    initialize   the greeting, alone: it is answered before anything else is loaded
    requests     what a client asks of us, and our answers
    updates      what we tell it of a session as it happens
    client       what we ask of the client, and its answers
    values       what several of them are made of

Keys that we do not know are passed over. `_meta` is a field of its own (`meta`): nothing in it
is ever taken for an argument.
"""
