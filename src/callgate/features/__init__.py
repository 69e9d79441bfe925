"""Removable parts of the product: one directory each, named by `callgate.feature`.

The kernel imports none of them. A feature imports only features to its left:
reporting < mcp < chat < editor < agents < web < fleet.
"""
