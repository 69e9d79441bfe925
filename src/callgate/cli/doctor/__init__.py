"""The checks of `callgate doctor`. Begin with `checks.py`."""
