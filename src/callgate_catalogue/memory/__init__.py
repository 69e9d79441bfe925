"""Notes of an agent for later: memory_add, memory_replace, memory_consolidate, memory_search.

`store` has the tools and the entries, each a text file that a person can read and edit, also with
`callgate memory`. `pack` is the table of the tools.
"""
