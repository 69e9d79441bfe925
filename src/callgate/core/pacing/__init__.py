"""Limits on how fast producers work for their readers."""
