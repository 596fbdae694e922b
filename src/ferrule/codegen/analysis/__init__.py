"""Questions about loops and indices that schedules and primitives ask."""
