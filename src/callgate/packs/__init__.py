"""What a package of tools may import, beside the names that `callgate` itself exports.

    tools       a package and what it gives: `Pack`, `PackTool`, `PackContext`, tables of tools
    files       private files in the home, files of the workspace
    http        requests to servers elsewhere
    addresses   which hosts are meant, and what an address is
    processes   programs that a package starts
    speech      what is said aloud
    settings    the tables of the packages that we ship
    commands    commands of the command line: what they are called, what they take
    terminal    what a command prints, and how it reads its settings

These modules are public: docs/build/packages.md says what they promise. Each only names what others
define, and nothing of callgate imports them. A module is loaded when it is imported, so import
`terminal`, `http` and `files` where they are used, not where a package says which tools it has.
"""
