"""Plans of graphs that were scheduled before, in memory and on disk."""
