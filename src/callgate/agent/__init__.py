"""A model that works in turns with the tools of a session.

    Agent.turn -> Turn: history -> projection -> model -> reading -> batch -> history -> ...
                                                             |         |
                                                          outputs   dispatcher

Start with `turns.Turn.run`, which is that line as a function. A model that calls tools
natively and one that writes its calls as text differ in two places only: what they are shown
(`projection`) and how their reply is read (`reading`). Between these, everything is in the
blocks of `core/content.py`, so a conversation may change its model at any time.
"""
