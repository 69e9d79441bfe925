"""`callgate host` and `callgate hosts`: for authors of tool hosts, and for their users."""
