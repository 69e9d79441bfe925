"""The commands by what they are for: a module a family, with a `HEADING` and its `COMMANDS`.

`command_line` puts them together. Light to import: no command is loaded here, and of the families
only the one that is needed. `command` has the values and options that several of them share.
"""
