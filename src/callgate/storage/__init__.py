"""Where sessions live: `sqlite`, in a file of the home.

    op ---> changes (what each op means, once for every engine)
              |  reads and writes rows through a `View`
              v
    engine: load the rows that a batch needs, let it be applied, save what changed, commit

An engine knows rows and durability, and nothing of what an op means. Start with `views`.
"""
