"""The parts of programs: types, expressions, shapes, ops, and the lazy graph."""
