"""`python -m ferrule`."""

from ferrule.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
