"""The built-in tools, one module a family.

Each class is the factory of its own instances: one serves one call. A writing tool also
says with `preview` what a person would allow. Start with `files`.
"""
