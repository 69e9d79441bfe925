"""Version and directory of the package."""

import os

__version__ = "0.1.0"
PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
