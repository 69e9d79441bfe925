"""The local socket: `listening` makes it, safely, `instances` says where it is to those who look."""
