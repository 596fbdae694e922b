"""Running: realising nodes of the graph, functions of the host, random numbers."""
