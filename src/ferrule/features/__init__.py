"""The documented path of the graph executor of CUDA; it is in `ferrule.runtime.graph`."""
