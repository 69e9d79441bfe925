"""Adapters for agent frameworks: a gate checks the framework's tool calls, with two lines of code.

`guard` has the parts that all adapters share. Each other module imports its own framework.
"""
