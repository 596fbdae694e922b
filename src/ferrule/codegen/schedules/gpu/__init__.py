"""Schedules for thread blocks, as GPUs run them."""
