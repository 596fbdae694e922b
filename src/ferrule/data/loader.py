"""`DataLoader`: passes over a data set, batch by batch, which threads may make ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar, final

from ferrule.data.collate import default_collate, default_convert
from ferrule.data.datasets import IterableDataset, rows_at
from ferrule.data.generator import Generator
from ferrule.data.samplers import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    count_of,
    grouped,
)

T = TypeVar("T")
_AHEAD = 2  # batches for each thread, as in PyTorch


@final
class DataLoader(Generic[T]):
    """Batches of a data set; each `for` is a pass over it.

    A data set has samples by number (`dataset[i]`, `len(dataset)`), or is an `IterableDataset`.

    `shuffle` draws another order in each pass, by the `generator` or by `Tensor.manual_seed`; a
    `sampler` gives the order itself, a `batch_sampler` lists of numbers. `drop_last` leaves out a
    last batch that is shorter. `collate_fn` makes a batch of a list of samples; see
    `default_collate`. With `batch_size=None` samples come one by one.

    `num_workers` threads make batches ahead, `prefetch_factor` each, in the same order; an error of
    theirs is raised where the batch is due. They share the data set. `pin_memory` and
    `persistent_workers` are taken for programs of PyTorch, and change nothing here.

    Raises `ValueError` for options that exclude each other.

    >>> from ferrule import Tensor
    >>> from ferrule.data import DataLoader, TensorDataset
    >>> rows = TensorDataset(Tensor.arange(5), Tensor.arange(5) * 2)
    >>> [(x.tolist(), y.tolist()) for x, y in DataLoader(rows, batch_size=2)]
    [([0, 1], [0, 2]), ([2, 3], [4, 6]), ([4], [8])]
    >>> len(DataLoader(rows, batch_size=2, shuffle=True, drop_last=True))
    2
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        *,
        generator: Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        is_stream = isinstance(dataset, IterableDataset)
        if is_stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("an IterableDataset has an order of its own: no shuffle, no sampler")
        if sampler is not None and shuffle:
            raise ValueError("a sampler gives the order itself: leave out shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "a batch_sampler gives batches itself: leave out batch_size, shuffle, sampler "
                    "and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("without batches there is no last one to drop: leave out drop_last")
        if num_workers < 0:
            raise ValueError(f"num_workers is {num_workers}; it is a number from 0 on")
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.prefetch_factor = _AHEAD if prefetch_factor is None else prefetch_factor
        self.pin_memory = pin_memory
        self.persistent_workers = persistent_workers
        self.sampler: Any = sampler
        if sampler is None and not is_stream:
            self.sampler = (
                RandomSampler(dataset, generator=generator)
                if shuffle
                else SequentialSampler(dataset)
            )
        self.batch_sampler: Any = batch_sampler
        if batch_size is not None:
            # It checks the size, too.
            self.batch_sampler = BatchSampler(self.sampler or (), batch_size, drop_last)
        is_batched = self.batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if is_batched else default_convert)

    def __iter__(self) -> Iterator[T]:
        given = self._given()
        return self._ahead(given) if self.num_workers else map(self._made, given)

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            stream: Any = self.dataset  # which may know how many samples it has
            if self.batch_size is None:
                return len(stream)
            return count_of(len(stream), self.batch_size, self.drop_last)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _given(self) -> Iterator[Any]:
        """The numbers, or the samples of a stream, that each batch is made of."""
        if not isinstance(self.dataset, IterableDataset):
            return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)
        if self.batch_size is None:
            return iter(self.dataset)
        return grouped(self.dataset, self.batch_size, self.drop_last)

    def _made(self, given: Any) -> Any:
        """The batch of some numbers, or of samples of a stream."""
        if isinstance(self.dataset, IterableDataset):
            return self.collate_fn(given)
        if self.batch_sampler is None:
            return self.collate_fn(self.dataset[given])
        if self.collate_fn is default_collate:
            rows = rows_at(self.dataset, given)
            if rows is not None:
                return rows
        return self.collate_fn([self.dataset[number] for number in given])

    def _ahead(self, given: Iterator[Any]) -> Iterator[T]:
        """Batches that threads make ahead, in their order."""
        waiting: deque[Future[Any]] = deque()
        starts = iter(range(self.num_workers))

        def start() -> None:
            if self.worker_init_fn is not None:
                self.worker_init_fn(next(starts))

        pool = ThreadPoolExecutor(self.num_workers, "ferrule-data", start)
        try:
            for one in given:
                waiting.append(pool.submit(self._made, one))
                if len(waiting) > self.num_workers * self.prefetch_factor:
                    yield waiting.popleft().result(self.timeout or None)
            while waiting:
                yield waiting.popleft().result(self.timeout or None)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
