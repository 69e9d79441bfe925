"""Values, errors and ports of all other packages.

Two parts do I/O: `local` (files, locks, environment) and `http`. This package imports no other.
Start with `calls` (a call and its result), then `tools` (the work in between) and `errors`.
"""
