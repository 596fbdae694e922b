"""Programs as C, CUDA C and OpenCL C."""
