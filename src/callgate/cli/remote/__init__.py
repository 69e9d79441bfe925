"""Commands carried out by a running instance. `call.py` is the fast path of `callgate call`."""
