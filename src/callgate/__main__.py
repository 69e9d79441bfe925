"""`python -m callgate` is `callgate`."""

import os
import sys

if sys.path and sys.path[0] in ("", os.getcwd()) and not sys.flags.safe_path:
    del sys.path[0]  # where we are is a workspace: what lies there is not our code

from callgate.cli.main import main

sys.exit(main())
