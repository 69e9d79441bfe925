"""Tools of MCP servers: `servers` keeps one alive, `connections` speaks with it by the official
SDK (which is loaded then, and not before), `tools` are what the dispatcher sees, `server_tools`
is the source of them all: begin there."""
