"""The commands by what they are for: a module a family, with a `HEADING` and its `COMMANDS`.

`commands` puts them together. Light to import: no command is loaded here, and of the families
only the one that is asked for. `parts` has what several of them say alike.
"""
