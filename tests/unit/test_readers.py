"""Who takes the node of a tensor is noted: a replay relies on that before it writes."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.replays import is_had_by_others

import ferrule
from ferrule import Context, Tensor, nn
from ferrule.jit import TinyJit, readers
from ferrule.jit.owners import present_version

Use = Callable[[Tensor], Any]


@pytest.fixture(autouse=True)
def _on_numpy() -> Iterator[None]:
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


def fresh(*shape: int) -> Tensor:
    """A tensor whose node nobody has."""
    size = int(np.prod(shape))
    tensor = Tensor(np.linspace(0.1, 0.9, size, dtype=np.float32).reshape(shape)).realize()
    readers.leave_to_readers(tensor._cell)
    assert not tensor._cell.taken
    return tensor


_OTHERS: tuple[Callable[[], tuple[Any, ...]], ...] = (
    *(lambda: (), lambda: (fresh(2, 2),), lambda: (0,), lambda: (1,), lambda: (0, 1)),
    *(lambda: ((4,),), lambda: ((1, 0),), lambda: (((0, 1), (0, 2)),), lambda: (2.0,)),
    *(lambda: (fresh(2, 2), fresh(2, 2)), lambda: (np.int64, 0), lambda: ("float64",)),
    *(lambda: (0, Tensor([1, 0])), lambda: (slice(0, 1),), lambda: (slice(0, 1), 2.0)),
    *(lambda: (0, Tensor([[1, 0], [0, 1]])), lambda: (Tensor([[True, False]] * 2), 0.5)),
    *(lambda: (0.0, 1.0), lambda: (0, 0, 1), lambda: ([fresh(2, 2)],), lambda: (fresh(2),)),
)
"""Arguments, of which most methods take some."""


def _methods() -> list[str]:
    left_out = {"__init__", "__new__", "__class__", "__del__", "__getattr__", "__init_subclass__"}
    names = [name for name in dir(Tensor) if not name.startswith("_") or name.endswith("__")]
    found = [name for name in names if not hasattr(object, name) or name in ("__eq__", "__ne__")]
    return [name for name in found if name not in left_out]


def _used(name: str, others: tuple[Any, ...], tensor: Tensor) -> Any:
    if isinstance(inspect.getattr_static(Tensor, name), staticmethod | classmethod):
        return getattr(Tensor, name)(tensor, *others)
    attribute = getattr(tensor, name)
    found = attribute(*others) if callable(attribute) else attribute
    return list(found) if isinstance(found, Iterator) else found


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_methods_note_it_if_they_take_the_node(needs_gradient: bool) -> None:
    """Each method, with some of the arguments above that it takes."""
    worked: set[str] = set()
    keeping: set[str] = set()
    for name in _methods():
        tried = 0
        for others in _OTHERS:
            if tried == 2:
                break
            tensor = fresh(2, 2)
            if needs_gradient:
                tensor.requires_grad = True
            found = None
            try:
                with np.errstate(all="ignore"):
                    found = _used(name, others(), tensor)
            except Exception:
                continue  # it does not take these
            worked.add(name)
            tried += 1
            noted = tensor._cell.taken
            version = present_version(tensor._cell)
            if version.realized is None:  # it was written to
                assert noted, name
                continue
            del version
            if is_had_by_others(tensor._cell):
                assert noted, name
                keeping.add(name)
            del found
    assert len(worked) > 250
    assert len(keeping) > 150
    assert {"__add__", "clone", "sum", "where", "cast"} <= keeping


USES: dict[str, Use] = {
    "a part of a part": lambda w: w[:1][0],
    "a copy": copy.deepcopy,
    "a pickle": pickle.dumps,
    "a new tensor of it": Tensor,
    "the node": lambda w: w.lazydata,
    "a write to another tensor": lambda w: fresh(2, 2).assign(w),
    "a write to a part of another tensor": lambda w: fresh(3, 2).__setitem__(slice(0, 2), w),
    "a lazy write to it": lambda w: (w.clone(), w.add_(1)),
    "a layer": lambda w: nn.Linear(2, 2)(w),
    "a view, from which a copy is made": lambda w: w.T.clone(),
    "several joined": lambda w: Tensor.cat(w, w),
    "the derivative of a function": lambda w: ferrule.grad(lambda x: (x * w).sum())(w),
    "a function of rows": lambda w: ferrule.vmap(lambda x: x * w)(w),
    "a part that is computed again": lambda w: ferrule.checkpoint(lambda x: x * w, w),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_uses_note_it_if_they_take_the_node(use: Use) -> None:
    tensor = fresh(2, 2)
    found = use(tensor)
    noted = tensor._cell.taken
    version = tensor._cell.value.node
    assert noted or version.realized is not None
    if version.realized is not None:
        del version
        assert noted or not is_had_by_others(tensor._cell)
    del found


def test_a_version_that_is_put_back_may_be_had_by_others() -> None:
    tensor, other = fresh(2), fresh(2)
    tensor._cell.restore(other._cell.take())
    assert tensor._cell.taken
    assert other._cell.taken


def test_what_only_looks_at_a_tensor_takes_nothing() -> None:
    tensor = fresh(2, 2)
    looked = tensor.shape, tensor.dtype, tensor.device, tensor.nbytes, len(tensor), tensor.ndim
    assert len(looked) == 6
    assert not tensor._cell.taken


@pytest.mark.parametrize("reader", [None, lambda w: w.clone(), lambda w: w * 1, lambda w: w[1:]])
def test_readers_keep_the_contents_that_a_write_to_memory_replaces(reader: Use | None) -> None:
    tensor = fresh(4)
    before = tensor.numpy()
    found = None if reader is None else reader(tensor)
    memory = tensor._cell.value.node.realized
    assert memory is not None
    readers.leave_to_readers(tensor._cell)
    assert tensor._cell.value.node.realized is memory
    memory.fill(np.zeros(4, np.float32))
    assert tensor.tolist() == [0] * 4
    if isinstance(found, Tensor) and found._parent is None:
        np.testing.assert_equal(found.numpy(), before)
    elif isinstance(found, Tensor):
        assert found.tolist() == [0] * 3  # a view sees the write


def test_a_reader_of_the_random_stream() -> None:
    Tensor.manual_seed(3)
    later, add = Tensor.rand(3), TinyJit(lambda x: x + Tensor.rand(3))
    for _ in range(4):
        add(Tensor([0.0]))
    assert add.jit_cache
    position = ferrule.engine.random.stream_of(later.device)
    next_one = add(Tensor([0.0])).tolist()
    kept = Tensor(position).tolist()
    Tensor.manual_seed(3)
    for _ in range(6):
        found = Tensor.rand(3).tolist()
    assert found == next_one
    assert kept[2] == 5


def test_no_room_for_what_readers_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has its old node again, so that the two share memory and the graph knows."""
    tensor = fresh(4)
    reader, before = tensor * 2, tensor.numpy() * 2

    def fail(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(readers, "Buffer", fail)
        with pytest.raises(MemoryError):
            readers.leave_to_readers(tensor._cell)
    tensor.add_(1)
    np.testing.assert_equal(reader.numpy(), before)
