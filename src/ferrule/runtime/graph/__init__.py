"""Graph executors: a whole batch of captured kernels, run by one call."""
