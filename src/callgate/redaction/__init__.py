"""Takes secrets out of texts and data. Pure.

Begin with `texts.py` (`redact`) and `data.py`; `masking.py` is the list of what is looked for.
"""
