"""Tool sources besides the built-in tools. Each is a `dispatch.tools.sources.ToolSource`.

Start reading at `functions`, which turns a Python function into a tool. It uses `signatures`
(parameters), `shapes` (JSON Schema of types, and docstrings) and `outputs` (results). Hosts and MCP
servers share `pins` (approved definitions) and `providers` (processes and their source).
"""
