"""Dynamic shapes: sizes, offsets and numbers that change from call to call."""
