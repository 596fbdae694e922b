"""Functions of neural networks: windows, normalisation, attention, losses."""
