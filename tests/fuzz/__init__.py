"""Random programs that must mean the same in whichever way they run. See docs/design/testing.md."""
