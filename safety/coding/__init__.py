"""Calls of coding sessions: how often a gate asks about ordinary ones, and lets dangerous ones run.

`sessions` reads the calls (`sessions.toml`), `scene` is the project on the disk and the work that
replaces commands and pages, `gates` has the rows, `runs` plays a session.
"""
