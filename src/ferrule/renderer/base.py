"""What every renderer is: a program in, the text for one compiler out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ferrule.codegen.uops import UOp
from ferrule.target import Target


class RenderError(ValueError):
    """A program that a renderer's language or target cannot express."""


class Renderer(ABC):
    """Turns programs into source text for the device that `target` describes.

    A renderer keeps no state between calls: equal programs give equal text.
    """

    target: Target

    @abstractmethod
    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """The source of the kernel `name`, which does what `uops` say.

        Raises:
            RenderError: the program needs what the language or the target lacks.
        """
