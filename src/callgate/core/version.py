"""The version of the package, which we name to others, and its directory."""

import os

__version__ = "0.1.0"
PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
