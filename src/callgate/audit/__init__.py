"""Audit log: one redacted, hash-chained line per call.

`log` writes lines, `records` defines their fields, `verify` detects changes, and `reading`
searches.
"""
