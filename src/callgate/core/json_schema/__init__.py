"""The subset of JSON Schema that tools use, with bounds on the work. Begin with `schemas.py`."""
