"""callgate as an MCP server: `callgate mcp serve` (stdio), and `/mcp` on an instance's port.

    bytes -> SDK -> server.py -> pending_requests.py -> Runtime
                        |            '-- progress, questions and logs, back to the client
                        '-- offers: files, transcripts, skills

The official SDK reads and writes the protocol in both of its generations; what is offered, under
which session and what becomes of a request is ours. Start at `server`. Nothing here is imported
before somebody speaks MCP: the SDK takes a second.
"""
