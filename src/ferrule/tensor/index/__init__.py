"""Reading and writing elements by position or mask."""
