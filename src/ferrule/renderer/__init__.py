"""Renderers: from programs to the text that a compiler takes."""
