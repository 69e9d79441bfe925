"""The workspace of a session and its boundary.

    path text -> paths -> wall -> descriptor -> guard -> files
                           |
                opening, by the kernel or step by step

Start with `files`, the interface for tools. Then read `wall`, which turns a path into an open
descriptor inside the workspace, and `opening`, which opens it. `excerpts` and `protected`
are pure. No module checks a path first and opens it afterwards: the opened file is checked and
used.

Undo: `noting` reports each change to a history, `undo/history` stores it (`undo/records`),
`undo/planning` plans an undo, and `undo/reverting` applies it through the same boundary.
"""
