"""Built-in tools, one module for each family.

Each class is the factory of its instances, and an instance serves one call. A writing tool also has
a `preview` for the approver. Start with `files`.
"""
