"""Wire formats without I/O: values in, values out, in the spelling of each peer. Pure.

`provider_shapes` converts definitions, tool uses and results to and from the shapes of Anthropic,
OpenAI and MCP. `strict_json` is the only decoder for foreign JSON; `json_texts` decodes our own, in
commands that must start fast.
"""
