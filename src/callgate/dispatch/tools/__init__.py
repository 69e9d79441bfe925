"""Tools: the port `ToolSource`, the checks of a tool, and the registry of all sources."""
