"""Builds a runtime from settings: the only package that knows all concrete classes.

Begin with `runtime.py`."""
