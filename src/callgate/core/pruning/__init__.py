"""Deleting what is old from a store: the `ops`, and what is read before them (`usage`)."""
