"""The files that `callgate init` writes: to be read and changed by the person who gets them."""

from __future__ import annotations

SETTINGS = """\
# callgate's settings. Everything here is optional; what stands behind a # is the default or
# an example. `callgate doctor` says whether the file is right, `callgate policy explain TOOL
# key=value ...` what it decides.

# The ceiling of what may run without a question: none, read, ask, guarded or write.
mode = "ask"

[tools]
# Python files (relative to this one) or modules whose @tool functions are offered.
load = ["tools/hello.py"]
# disable = ["delete_file"]

[policy.default]
# By what a tool can do: auto, prompt, prompt_once or deny.
# read = "auto"
# write = "prompt"
# network = "prompt"
# execute = "prompt"

[policy.per_tool]
# shell = "deny"

# Of the rules that match, deny beats ask beats allow.
# [[policy.rules]]
# decision = "allow"
# tool = "shell"
# command = "git status *"
#
# [[policy.rules]]
# decision = "deny"
# path = "**/.env"

# Commands run in a sandbox: they write in the workspace only and have no network.
# [sandbox]
# network = "none"                  # or "loopback", "all", ["example.org", "*.example.com"]
# writable = ["~/.cache/pip"]
# readable = ["~/.config/gh"]       # of what is hidden from commands as a secret

# [workspace]
# extra_roots = [{ path = "~/notes", access = "read" }]

# [limits]
# concurrency = 4
# confirmation_timeout_s = 300

# [audit]
# max_bytes = 67108864
# keep = 8

# [durability]
# files = "synced"                  # or "fast": a power cut may lose what tools wrote last
"""

WORKSPACE_SETTINGS = """\
# What tools may do in this directory. It can only narrow what each person's own settings
# allow, and it is read only by those who ran `callgate trust .` here.

# [policy.per_tool]
# shell = "prompt"

# [[policy.rules]]
# decision = "deny"
# path = "secrets/**"
"""

HELLO = '''\
"""A sample tool. Try: callgate call hello name=world"""

from callgate import tool


@tool(side_effects="none")
async def hello(name: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        name: Whom to greet.
        times: How often.
    """
    return "\\n".join([f"Hello, {name}!"] * times)
'''
