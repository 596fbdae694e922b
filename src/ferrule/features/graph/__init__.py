"""See `ferrule.features`."""
