"""MCP: servers as sources of tools, and callgate as an MCP server."""
