"""The local socket: `listening` creates it safely, `instances` records its path."""
