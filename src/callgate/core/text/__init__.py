"""Patterns and characters of text, matched in linear time."""
