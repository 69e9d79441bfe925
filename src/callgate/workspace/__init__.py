"""The directory a session works in, and the wall around it.

    path text -> paths -> wall -> descriptor -> guard -> files
                           |
                   opening (kernel) or walk (step by step)

Start with `files`, the face that tools see; then `wall`, which turns a path into an open
descriptor that cannot lie outside; then `opening` and `walk`, which do it. `edits`, `globs`
and `protected` are pure. Nothing here checks a path first and opens it afterwards: what was
opened is what is checked, and what is used.

The way back: `noting` tells a history of each change, `history` keeps it (`records`, `blobs`,
`pruning`), `reverts` plans an undo and `restoring` carries it out through the same wall.
"""
