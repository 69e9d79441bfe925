"""Why no instance runs."""

from __future__ import annotations


class CannotServe(Exception):
    """An instance cannot, or must not, be started here; `str` says why and is safe to show."""
