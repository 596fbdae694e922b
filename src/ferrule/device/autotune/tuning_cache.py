"""The tuning cache: the schedules that searches found, kept on disk for later processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence

from ferrule.base import diskcache
from ferrule.base.records import dataclass
from ferrule.codegen.opt import Opt

_TABLE = "winner"


class TuningWarning(UserWarning):
    """A search, or its result on disk, cannot be used; kernels run as they do without it."""


@dataclass(frozen=True)
class TunedSchedule:
    """The result of a search: the fastest schedule, and the seconds of a run before and after.

    If nothing was faster than the heuristic's own schedule, `opts` is that, and the times are
    equal. `note` is the reason why a kernel was not searched, if there is one.
    """

    opts: tuple[Opt, ...]
    before: float = 0.0
    after: float = 0.0
    trials: int = 0
    note: str = ""

    @property
    def gained(self) -> bool:
        """True if it is faster than the heuristic's schedule."""
        return self.after < self.before

    def __str__(self) -> str:
        if self.note:
            return self.note
        return f"{self.before * 1e6:.1f} us -> {self.after * 1e6:.1f} us, {self.trials} trials"

    def to_json(self) -> str:
        """The winner as JSON text."""
        opts = [[opt.primitive, *opt.args] for opt in self.opts]
        return json.dumps([opts, self.before, self.after, self.trials, self.note])

    @staticmethod
    def from_json(text: str | bytes) -> TunedSchedule:
        """The winner that `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            opts, before, after, trials, note = json.loads(text)
            found = tuple(Opt.from_json(json.dumps(opt)) for opt in opts)
            if not all(isinstance(opt.primitive, str) for opt in found):
                raise TypeError("a primitive's name is no text")
            return TunedSchedule(found, float(before), float(after), int(trials), str(note))
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"not a winner: {error}") from error


def load(keys: Sequence[str]) -> dict[str, TunedSchedule]:
    """The winners that the disk cache has; one that cannot be read is left out, with a warning."""
    found = {}
    for key, text in diskcache.get_many(_TABLE, keys).items():
        try:
            found[key] = TunedSchedule.from_json(text)
        except ValueError as error:
            warnings.warn(f"a tuned schedule is not used: {error}", TuningWarning, stacklevel=2)
    return found


def store(key: str, winner: TunedSchedule) -> None:
    """Keeps a winner for later processes."""
    diskcache.put(_TABLE, key, winner.to_json().encode())
