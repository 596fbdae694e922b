"""Text for the user about captured functions: why calls were captured, and what replays run."""
