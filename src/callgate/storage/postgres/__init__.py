"""The store in one schema of a PostgreSQL database, shared by servers on many machines.

    loop:    commit() ---> pending ---> [writer thread] one transaction, one round trip for a batch
             read_*() ---> [reader threads, a connection each]
             wake()   ---> in this process at once; [listener thread] from other processes

`store` is the face. `writer` commits, `rows` remembers and loads for it, `saving` turns changes
into statements, `wire` sends them; `reads` answers questions; `owners` knows which processes live;
`listener` passes hints on and says that this process lives; `schema` makes the tables.

A batch is applied to rows that the writer remembers. The transaction locks their sessions in one
order and checks that none has changed since (`touch`); if one has, the batch is done again.
"""
