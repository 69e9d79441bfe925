"""A running callgate: a runtime, the directories that it serves, its listeners and its records.

    callgate.serve(), `callgate serve`   `Instance`: a socket, HTTP, records by which it is found
    `callgate acp`                       `editor`: one editor on two descriptors
    `callgate mcp serve`                 `mcp`: one MCP client on two descriptors

Start with `instance`. `directories` decides in which directory a peer works. This package
is independent of the command line: `cli` parses options, calls this package and prints.
"""
