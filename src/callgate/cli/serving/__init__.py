"""`callgate serve`, `status`, `stop`, `dashboard`, and what a long-running command needs."""
