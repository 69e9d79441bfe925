"""What happened, for whoever must answer for it: one line per call, redacted and chained.

`log` writes, `records` says what a line holds, `verify` checks that nothing was changed,
`reading` finds things again.
"""
