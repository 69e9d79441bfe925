"""The version of the package, which everything that names itself to others says."""

__version__ = "0.1.0"
