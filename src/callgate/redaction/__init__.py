"""Remove secrets from texts and data. Pure.

Start with `texts.py` (`redact`) and `data.py`; `masking.py` lists the patterns of secrets.
"""
