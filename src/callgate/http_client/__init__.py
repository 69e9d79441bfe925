"""Requests to servers elsewhere: what everyone who makes some shares.

`clients` opens connections, `retries` says when to ask again, `said` shows what a server said.
"""
