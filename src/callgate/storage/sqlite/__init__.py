"""The store in one SQLite file, shared by all processes of a home.

    loop:    commit() ---> pending ---> [writer thread] one transaction for all pending commits
             read_*() ---> [two reader threads with a connection each] never wait for the writer
             wake()   ---> from this process immediately; [watcher thread] from other processes

`store` is the interface. `writer` commits, `rows` loads and saves for it, `reads` answers queries,
`owners` checks which processes are alive, `schema` and `files` create, open and check the file,
`salvage` reads the rest of a damaged one.
"""
