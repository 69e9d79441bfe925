"""The operations of the HTTP API, one module a subject. `operations.py` explains the table."""
