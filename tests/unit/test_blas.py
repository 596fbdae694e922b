"""How many threads NumPy's linear algebra takes."""

from collections.abc import Iterator

import numpy as np
import pytest

from ferrule import Context, Tensor, dtypes
from ferrule.engine.blas import _controls, blas_threads, one_blas_thread
from ferrule.engine.host import on_host

found: list[int | None] = []


@pytest.fixture
def two_threads() -> Iterator[None]:
    """OpenBLAS with two threads, as on a machine with several cores."""
    controls = _controls()
    if controls is None:
        pytest.skip("NumPy has another BLAS")
    get, put = controls
    before = get()
    put(2)
    yield
    put(before)


def _counted(x: np.ndarray) -> np.ndarray:
    found.append(blas_threads())
    return x


def threads_for(*shape: int) -> int | None:
    value = Tensor.ones(*shape)._read()
    Tensor(on_host(_counted, [value], shape, dtypes.float32).node).realize()
    return found.pop()


@pytest.mark.usefixtures("two_threads")
def test_a_block_has_one_thread_and_gives_the_others_back() -> None:
    with one_blas_thread:
        assert blas_threads() == 1
        with one_blas_thread:
            pass
        assert blas_threads() == 1
    assert blas_threads() == 2
    with pytest.raises(ArithmeticError), one_blas_thread:
        raise ArithmeticError
    assert blas_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_small_matrices_and_single_threads_do_without_the_others() -> None:
    with Context(FERRULE_NUM_THREADS=2):
        assert threads_for(50, 100, 100) == 1
        assert threads_for(2, 400, 300) == 2
    with Context(FERRULE_NUM_THREADS=1):
        assert threads_for(400, 300) == 1
    assert blas_threads() == 2
