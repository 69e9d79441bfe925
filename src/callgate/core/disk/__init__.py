"""Waiting for the disk: in threads of its own (`threads`), and once for many (`shared_syncs`)."""
