"""Builds a runtime from settings: the only package that knows all concrete classes.

    components    sandbox, dispatcher, sources of tools
    runtime       `Wired`: all components together
    builder       `build`; sources of a runtime and their order; a dispatcher alone
        hosts         host processes from settings

Start with `runtime`.
"""
