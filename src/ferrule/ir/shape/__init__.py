"""Shapes: the movement operations, and the layout of a buffer's memory."""
