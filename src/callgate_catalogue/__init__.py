"""The tools that callgate ships beside its core: Google, the web, documents, memory, speech.

    pyproject.toml: entry point `callgate.tools`    -> NAME/pack.py: pack(context) -> Pack
                    entry point `callgate.commands` -> commands.py: COMMANDS

A package of tools like any other: it imports what `callgate` exports and `callgate.packs`, and
nothing else of callgate, which never imports it. Start with `web/pack.py`.
"""
