"""Movement: shapes and axes, padding, joining, splitting."""
