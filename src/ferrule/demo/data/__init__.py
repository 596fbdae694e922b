"""Data files of the demonstrations; their sources and licences are in NOTICE."""
