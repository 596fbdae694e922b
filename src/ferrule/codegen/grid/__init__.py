"""Schedules for blocks of threads, as GPUs run them."""
