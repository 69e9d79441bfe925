"""`python -m callgate` is `callgate`."""

import sys

from callgate.cli.main import main

sys.exit(main())
