"""The local socket: `instances` says where one is, `listening` makes it, safely."""
