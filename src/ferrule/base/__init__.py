"""Small things that every other folder stands on."""
