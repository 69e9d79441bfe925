"""The event stream of a process and its readers. Start with `bus`, which every event passes."""
