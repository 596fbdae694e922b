"""Searches for faster schedules, timed in a process that may crash."""
