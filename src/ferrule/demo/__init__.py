"""Demonstrations, run by `python -m ferrule demo NAME`."""
