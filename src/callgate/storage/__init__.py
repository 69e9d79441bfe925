"""Storage of sessions: `sqlite`, one file in the home.

    op ---> changes (the meaning of each op, defined once for every engine)
              |  reads and writes rows through a `View`
              v
    engine: load the rows of a batch, apply it, save the changes, commit

An engine implements rows and durability, and does not interpret ops. Most reads are defined once,
too (`queries`). Start with `views`.
"""
