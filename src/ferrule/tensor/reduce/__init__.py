"""Reductions, running totals, orders."""
