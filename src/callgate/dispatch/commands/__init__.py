"""How the commands of a call are started: which sandbox, and what path rules add."""
