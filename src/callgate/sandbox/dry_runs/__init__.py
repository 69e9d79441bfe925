"""A command that runs over a copy of the workspace, and what it would change."""
