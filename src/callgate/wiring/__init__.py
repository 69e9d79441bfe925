"""Builds a runtime from settings: the only package that knows all concrete classes.

    components    sandbox, dispatcher, sources of tools
    runtime       `Wired`: all of them, put together
    registration  which sources a runtime has, and in which order
    hosts, mcp    from settings to hosts and MCP servers; loaded where there are some
    agents        from settings to an agent

Begin with `runtime`.
"""
