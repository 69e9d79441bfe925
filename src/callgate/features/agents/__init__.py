"""Third-party agents behind callgate: hooks, ACP proxy, sandboxed runs."""
