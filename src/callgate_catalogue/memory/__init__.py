"""What an agent notes for later: memory_add, memory_replace, memory_consolidate, memory_search.

`store` keeps the entries, each a text file that a person can read and edit; `callgate memory` does
so too. `catalogue` is the table of the tools, `notes` what they do.
"""
