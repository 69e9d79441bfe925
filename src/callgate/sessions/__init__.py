"""Conversations that outlive a process and a connection."""
