"""`callgate mcp ...`: a module for each group of subcommands."""
