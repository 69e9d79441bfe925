"""The commands of docs/start/first-hour.md in order, and the keys that answer their questions."""

from __future__ import annotations

SERVER = "@modelcontextprotocol/server-filesystem"
COMMANDS = (
    "python3 -m venv ~/env && . ~/env/bin/activate",
    "pip install -q ./callgate",
    "mkdir project && cd project && echo milk > list.txt",
    "callgate init",
    f"callgate mcp add files -- npx -y {SERVER} .",
    "callgate call mcp.files/write_file path=list.txt content='milk, bread'",
    "callgate call read_file path=list.txt",
    "callgate acp --print-config zed",
    "cp ~/callgate/examples/chat/list.toml ~/model.toml",
    "acpx --agent 'callgate acp --model scripted:/home/ada/model.toml' exec 'Add apples.'",
    "callgate audit tail -n 4",
    "callgate audit verify",
)
KEYS = {
    "Allow them? [y/N] ": "y\r",
    "[Enter] more  [q]uit  [n]o > ": "\r",
    "Network?  [n]one  these [h]osts  [a]ll > ": "n\r",
    "[d]etails  [n]o > ": "r\r",
    "[y]es  [n]o > ": "y\r",
    "ne[v]er in this session > ": "y\r",
    "(y/N) ": "y\r",
}
"""Keys to press when the terminal waits after this text."""
