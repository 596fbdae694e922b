"""The devices: one module each, and what they stand on."""
