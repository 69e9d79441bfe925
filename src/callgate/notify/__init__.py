"""Tells a person elsewhere that a question waits: `messages`, `senders`, and `notices`: when.

A notice carries a link to the inbox, never a secret and never the power to answer.
"""
