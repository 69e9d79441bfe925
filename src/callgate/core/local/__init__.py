"""Files, locks, environment and git settings of this machine."""
