"""A running callgate: a runtime, the directories that it serves, its listeners and its records.

    callgate.serve(), `callgate serve`   `Instance`: a socket, HTTP, records by which it is found
    `callgate acp`                       `editor`: one editor on two descriptors
    `callgate mcp serve`                 `mcp`: one MCP client on two descriptors

Start with `instance`. `directories` is the rule about the directory that a peer works in. Nothing
here knows a command line: `cli` reads options, calls this package and prints.
"""
