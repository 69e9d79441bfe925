"""Where records go: a file, syslog, an HTTP server. `sink` has the port and the errors."""
