"""The scheduling primitives: pure functions `Kernel -> Kernel`, by what they change."""
