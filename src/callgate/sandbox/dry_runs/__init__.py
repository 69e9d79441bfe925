"""Dry runs: a command runs over a copy of the workspace, and its changes are reported."""
