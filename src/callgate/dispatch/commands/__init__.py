"""Start of a call's commands: choice of the sandbox, and enforcement of path rules."""
