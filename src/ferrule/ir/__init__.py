"""What programs are made of: types, expressions, shapes, ops, and the lazy graph."""
