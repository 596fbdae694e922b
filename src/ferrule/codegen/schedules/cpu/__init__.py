"""Schedules for processors: vectors, register tiles, chunks for threads."""
