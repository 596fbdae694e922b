"""Words for captured functions: what calls are told apart by, and what their replays run."""
