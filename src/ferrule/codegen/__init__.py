"""From a `LazyOp` to a program: lower, choose a schedule, apply it, linearize."""
