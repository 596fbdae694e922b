"""Products of matrices, linear systems, decompositions, Fourier transforms."""
