"""The commands of docs/start/first-hour.md in their order, and what a person presses when asked."""

from __future__ import annotations

REPOSITORY = "https://git.example.org/callgate.git"
"""Stands for the address of your clone; the recording clones this checkout."""
SERVER = "@modelcontextprotocol/server-filesystem"
COMMANDS = (
    f"git clone -q {REPOSITORY}",
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
    "[Enter] more  [q]uit  [n]o > ": "\r",
    "[y]es  [n]o > ": "y\r",
    "ne[v]er in this session > ": "y\r",
    "(y/N) ": "y\r",
}
"""What is pressed where the terminal waits behind these words."""
