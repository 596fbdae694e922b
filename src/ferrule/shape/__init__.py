"""Shapes: the movement operations, and how a buffer's memory is laid out."""
