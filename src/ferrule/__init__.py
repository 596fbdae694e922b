"""ferrule: a tensor compiler in Python."""
