"""Packed copies of constant weights, in the layout that kernels read.

A matrix product copies its right operand into packed panels, a convolution its filters. If that
operand is from outside the captured function, and the function does not write to it, the copy is
made once and kept until other code writes to the weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final
from weakref import WeakValueDictionary

from ferrule.base.config import config
from ferrule.device import Compiled, CompiledASTRunner, Device
from ferrule.device.capture import JitItem
from ferrule.device.weight_packing import (
    PackedCopy,
    PackedForm,
    Request,
    is_worth_packing,
    packed_forms,
)
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.jit.batch import Batch


@final
class _Panels:
    """A packed copy of a weight, shared by all captured functions that read it in that layout."""

    def __init__(self, copy: PackedCopy, weight: Buffer) -> None:
        self.copy = copy
        self.weight = weight
        self.packed = Buffer(weight.device, copy.size, copy.dtype)
        self._filled: int | None = None
        """The version of the weight that was copied."""

    def update(self, version: int | None) -> None:
        """Copies the weight, unless the copy is of that version already."""
        if self._filled != version:
            self.copy.runner([self.packed, self.weight], {})
            self._filled = version


_panels: WeakValueDictionary[tuple[object, ...], _Panels] = WeakValueDictionary()


def _panels_of(item: JitItem, copy: PackedCopy) -> _Panels:
    """The copy of an item's weight; each slice of memory has one copy for each layout."""
    weight = item.rawbufs[copy.source]
    assert weight is not None
    place = weight.base.serial, weight.byte_offset, weight.nbytes
    key = (*place, copy.runner.name, copy.size)
    found = _panels.get(key)
    if found is None:
        found = _panels[key] = _Panels(copy, weight)
    return found


@final
class PackedWeights:
    """A captured function's items, with weights read from packed copies.

    The copies are made when a replay finds all weights unchanged since the last one: a function
    whose weights change all the time gains nothing by copies.
    """

    def __init__(self, batch: Batch, panels: Sequence[_Panels]) -> None:
        self.batch = batch
        self.panels = panels
        self._weights = [panel.weight.base for panel in panels]
        self._seen = self._versions()
        """The versions of the weights at the last check."""
        self._ready: list[int | None] | None = None
        """The versions of the weights that the copies were made of."""

    @staticmethod
    def of(
        items: Sequence[JitItem],
        constants: Mapping[int, Buffer],
        inputs: Sequence[Buffer],
        var_vals: dict[Variable, int],
    ) -> PackedWeights | None:
        """The items with packed copies of `constants` (memory by serial number).

        None if that would gain too little, or if there is not enough memory.
        """
        given = {buffer.base.serial for buffer in inputs}
        shared = {serial for serial, memory in constants.items() if memory.version is None}
        names = frozenset(constants.keys() - given - shared)
        forms = _forms(items, names) if names else {}
        panels: list[_Panels] = []
        packed: list[JitItem] = []
        try:
            for number, item in enumerate(items):
                form = forms.get(number)
                copies = [] if form is None else [_panels_of(item, c) for c in form.copies]
                rawbufs = [*item.rawbufs, *(panel.packed for panel in copies)]
                runner = item.prg if form is None else form.runner
                packed.append(JitItem(runner, rawbufs, item.line))
                panels += [panel for panel in copies if panel not in panels]
        except MemoryError as error:
            if config().DEBUG >= 1:
                print(f"weights are packed in every replay: {error}")
            return None
        return PackedWeights(Batch(packed, inputs, var_vals), panels) if panels else None

    def are_ready(self) -> bool:
        """True if the packed copies are up to date.

        Copies the weights if they have not changed since the last call.
        """
        versions = self._versions()
        if versions == self._ready:
            return True
        if versions != self._seen or None in versions:
            self._seen = versions
            return False
        for panel, version in zip(self.panels, versions, strict=True):
            panel.update(version)
        self._ready = versions
        return True

    def _versions(self) -> list[int | None]:
        return [None if weight._exports else weight._version for weight in self._weights]


def _forms(items: Sequence[JitItem], names: frozenset[int]) -> dict[int, PackedForm]:
    """The packed forms of items, by number."""
    wanted: dict[str, dict[int, Request]] = {}
    for number, item in enumerate(items):
        runner = item.prg
        places = [i for i, b in enumerate(item.rawbufs) if b is not None and b.base.serial in names]
        if isinstance(runner, CompiledASTRunner) and is_worth_packing(runner, frozenset(places)):
            sizes = tuple(0 if buffer is None else buffer.nbytes for buffer in item.rawbufs)
            request = Request(runner, frozenset(places), sizes)
            wanted.setdefault(runner.device, {})[number] = request
    found: dict[int, PackedForm] = {}
    for name, requests in wanted.items():
        device = Device[name]
        assert isinstance(device, Compiled)
        forms = packed_forms(device, list(requests.values()))
        pairs = zip(requests, forms, strict=True)
        found.update((number, form) for number, form in pairs if form is not None)
    return found
