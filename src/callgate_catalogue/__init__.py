"""Tools that ship with callgate outside its core: Google, web, documents, memory, speech.

    pyproject.toml: entry point `callgate.tools`    -> NAME/pack.py: pack(context) -> Pack
                    entry point `callgate.commands` -> commands.py: COMMANDS

An ordinary package of tools: it imports only the exports of `callgate` and `callgate.packs`, and
callgate never imports it. Start with `web/pack.py`.
"""
