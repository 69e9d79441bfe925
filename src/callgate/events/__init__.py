"""One stream of events, many readers: `bus` is where every event of the process passes."""
