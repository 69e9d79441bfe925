"""Modules that a package of tools may import, besides the names that `callgate` itself exports.

    tools       a package and its contents: `Pack`, `PackTool`, `PackContext`, tables of tools
    files       private files in the home, files of the workspace
    http        requests to servers
    addresses   hosts in settings, and kinds of addresses
    processes   programs that a package starts
    speech      spoken output
    settings    the settings tables of built-in packages
    commands    declarations of commands for the command line
    terminal    output of commands, and access to their settings

These modules are public: docs/build/packages.md documents their stability. Each only re-exports
names, and nothing in callgate imports them. Some imports are slow, so import `terminal`, `http` and
`files` where they are used, not in the module that declares the tools of a package.
"""
