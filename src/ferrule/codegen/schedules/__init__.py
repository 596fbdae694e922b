"""Schedules of kernels, by kind of work; here what processors and GPUs share."""
