"""The speeds of this machine's cores as they were measured, in the disk cache."""

from __future__ import annotations

import json
from typing import Final

from ferrule.base import diskcache
from ferrule.ir.speeds import Speeds

_TABLE: Final = "speeds"


def measured(machine: str) -> Speeds | None:
    """The speeds that were measured on a machine, None if they were not.

    `machine` is the key of its `Target` with the speeds that are shipped.
    """
    found = diskcache.get(_TABLE, machine)
    if found is None:
        return None
    try:
        return Speeds.from_json(json.loads(found))
    except ValueError:  # kept by a version with other constants
        return None


def keep(machine: str, speeds: Speeds) -> None:
    """Keeps measured speeds in the disk cache; processes that begin later use them."""
    diskcache.put(_TABLE, machine, json.dumps(speeds.to_json()).encode())
