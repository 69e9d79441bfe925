"""The settings of homes that share a store: it takes a key for the secrets in it."""

from __future__ import annotations

SECRETS = '[secrets]\nkey_command = "echo 0123456789abcdefghijklmnopqrstuvwxyz"\n'
"""A key that every process finds, whatever its environment."""
