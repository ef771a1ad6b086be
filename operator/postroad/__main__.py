"""`python -m postroad` is `postroad`."""

from postroad.cli import main

if __name__ == "__main__":
    main()
