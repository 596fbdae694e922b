"""`CUDAGraph` by its documented path."""

from ferrule.runtime.graph.cuda import CUDAGraph

__all__ = ["CUDAGraph"]
