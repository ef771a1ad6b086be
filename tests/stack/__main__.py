"""`python -m stack`."""

import sys

from stack.commands import main

if __name__ == "__main__":
    sys.exit(main())
