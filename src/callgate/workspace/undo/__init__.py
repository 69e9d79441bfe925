"""History of file changes, and undo."""
