"""`callgate mcp`: a module for each group of subcommands; `subcommands.py` picks it."""
