"""Packages of tools: what one gives (`values`), and which are installed (`installed`)."""
