"""The network of a jail that may reach some hosts: a proxy for each command."""
