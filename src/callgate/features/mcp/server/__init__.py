"""callgate as an MCP server: `callgate mcp serve` (stdio), and `/mcp` on an instance's port.

    bytes -> SDK -> server.py -> pending_requests.py -> Runtime
                        |            '-- progress, questions and logs, back to the client
                        '-- resources.py, local.py: files, transcripts, skills

The official SDK implements the protocol in all its versions. This package implements the offered
tools, resources and prompts, the sessions, and the requests. Start with `server`. These modules are
imported on first use, because the SDK takes a second.
"""
