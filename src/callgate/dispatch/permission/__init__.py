"""Questions to a person and remembered answers, for the stage `authorize`."""
