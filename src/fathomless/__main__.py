"""``python -m fathomless`` is the command line."""

import sys

from fathomless.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
