"""Attacks that were written with knowledge of the guard, and a search for more.

`attacks` reads the tables (`tools.toml`, `attacks.toml`), `runs` plays one attack, `search` tries
calls from templates after each task of AgentDojo.
"""
