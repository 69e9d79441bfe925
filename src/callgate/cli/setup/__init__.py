"""`callgate init`, and what it writes and asks at a terminal."""
