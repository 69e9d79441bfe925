"""The local socket: `listening` makes it, safely, `instances` records where it is."""
