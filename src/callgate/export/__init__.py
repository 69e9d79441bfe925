"""The record for others: `formats` says what a record becomes, `sinks/` where it goes, `runs` how.

Reading the log is `callgate.audit.forward`. Delivery is at least once: a record has the same id
however often it is sent.
"""
