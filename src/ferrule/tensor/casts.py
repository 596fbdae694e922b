"""Casts under the names of types.

The functions hide Python's types of these names, so that no annotation here has one.
"""

from __future__ import annotations

from ferrule.ir.dtype import dtypes
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method


@method
def float(self: Tensor) -> Tensor:
    """Each element as a float32.

    >>> from ferrule import Tensor
    >>> Tensor([1]).float().tolist()
    [1.0]
    """
    return self.cast(dtypes.float32)


@method
def double(self: Tensor) -> Tensor:
    """Each element as a float64.

    >>> from ferrule import Tensor
    >>> Tensor([1]).double().tolist()
    [1.0]
    """
    return self.cast(dtypes.float64)


@method
def half(self: Tensor) -> Tensor:
    """Each element as a float16.

    >>> from ferrule import Tensor
    >>> Tensor([1]).half().tolist()
    [1.0]
    """
    return self.cast(dtypes.float16)


@method
def bfloat16(self: Tensor) -> Tensor:
    """Each element as a bfloat16.

    >>> from ferrule import Tensor
    >>> Tensor([1]).bfloat16().tolist()
    [1.0]
    """
    return self.cast(dtypes.bfloat16)


@method
def int(self: Tensor) -> Tensor:
    """Each element as a int32.

    >>> from ferrule import Tensor
    >>> Tensor([1]).int().tolist()
    [1]
    """
    return self.cast(dtypes.int32)


@method
def long(self: Tensor) -> Tensor:
    """Each element as a int64.

    >>> from ferrule import Tensor
    >>> Tensor([1]).long().tolist()
    [1]
    """
    return self.cast(dtypes.int64)


@method
def short(self: Tensor) -> Tensor:
    """Each element as a int16.

    >>> from ferrule import Tensor
    >>> Tensor([1]).short().tolist()
    [1]
    """
    return self.cast(dtypes.int16)


@method
def byte(self: Tensor) -> Tensor:
    """Each element as a uint8.

    >>> from ferrule import Tensor
    >>> Tensor([1]).byte().tolist()
    [1]
    """
    return self.cast(dtypes.uint8)


@method
def char(self: Tensor) -> Tensor:
    """Each element as an int8.

    >>> from ferrule import Tensor
    >>> Tensor([1]).char().tolist()
    [1]
    """
    return self.cast(dtypes.int8)


@method
def bool(self: Tensor) -> Tensor:
    """Each element as a bool.

    >>> from ferrule import Tensor
    >>> Tensor([1]).bool().tolist()
    [True]
    """
    return self.cast(dtypes.bool)
