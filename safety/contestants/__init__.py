"""The gates that are compared; `rows` lists them in the order of the table."""
