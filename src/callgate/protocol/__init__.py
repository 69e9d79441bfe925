"""Wires without the wire: values in, values out, and the spelling of each peer between them.

Nothing here reads a socket, waits or decides. `definitions` shows our tools to a model,
`tool_uses` reads the calls it makes, `results` answers them: each in the shapes of Anthropic,
OpenAI and MCP. `strict_json` is the one decoder for JSON that somebody else wrote;
`json_texts` is for our own, where a command has no time to load a decoder.
"""
