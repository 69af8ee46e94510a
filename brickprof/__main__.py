"""``python -m brickprof``."""

import sys

from brickprof.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
