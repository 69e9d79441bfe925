"""The store in one SQLite file, shared by every process of a home.

    loop:    commit() ---> pending ---> [writer thread] one transaction for all that waits
             read_*() ---> [two reader threads, a connection each] never wait for the writer
             wake()   ---> in this process at once; [watcher thread] from other processes

`store` is the face. `writer` commits, `rows` loads and saves for it, `reads` answers questions,
`owners` knows which processes live, `schema` and `files` make, open and check the file,
`salvage` reads what is left of a damaged one.
"""
