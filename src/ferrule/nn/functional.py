"""Nothing but a hint, for `import ferrule.nn.functional as F` and the other ways to write that."""

raise ImportError(
    "ferrule has no nn.functional: functions are methods of tensors, such as x.relu() and "
    "x.cross_entropy(y); docs/coming-from.md has more of them",
    name=__name__,
)
