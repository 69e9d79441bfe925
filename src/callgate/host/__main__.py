"""`python -m callgate.host FILE_OR_MODULE`."""

import sys

from callgate.host.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
