"""Where tools come from, besides the built-in ones. Each is a `dispatch.tools.sources.ToolSource`.

`functions` makes a tool of a Python function: start there. It reads the function through
`signatures` (parameters), `shapes` (what each type looks like as JSON) and `docstrings`
(what the author says about it), and turns what it returns into a result with `outputs`.
Hosts and MCP servers share `providers` (what is pinned of each) and `provider_tools` (the source).
"""
