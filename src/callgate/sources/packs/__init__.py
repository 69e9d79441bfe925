"""Packages of tools: what one gives (`values`), which are installed (`installed`), and the sources
that they are (`packs`)."""
