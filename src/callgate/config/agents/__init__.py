"""The settings of coding agents that are not ours: where they are, and how their JSON is edited."""
