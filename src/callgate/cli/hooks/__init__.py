"""`callgate hook`: other agents behind the gate. `hook_client` is what their hooks run."""
