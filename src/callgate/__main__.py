"""`python -m callgate` is the same command as `callgate`."""

import os
import sys

if sys.path and sys.path[0] in ("", os.getcwd()) and not sys.flags.safe_path:
    del sys.path[0]  # the working directory is a workspace: its files must not shadow modules

from callgate.cli.main import main

sys.exit(main())
