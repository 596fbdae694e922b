"""Data sets, samplers and loaders of `ferrule.data`: which samples, in which order, in what."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest

from ferrule import Tensor, dtypes, torch
from ferrule.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    Generator,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from ferrule.errors import ShapeError


class Point(NamedTuple):
    x: Any
    y: Any


class Lines(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))

    def __len__(self) -> int:
        return self.size


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def numbers(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


# *** orders ***


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("workers", [0, 3])
def test_each_sample_is_in_one_batch(size: int, drop_last: bool, workers: int) -> None:
    loader: Any = DataLoader(range(7), size, drop_last=drop_last, num_workers=workers)
    wanted = [[*range(7)][start : start + size] for start in range(0, 7, size)]
    wanted = [one for one in wanted if len(one) == size or not drop_last]
    assert numbers(loader) == numbers(loader) == wanted
    assert len(loader) == len(wanted)
    stream: Any = DataLoader(Lines(7), size, drop_last=drop_last, num_workers=workers)
    assert numbers(stream) == wanted
    assert len(stream) == len(wanted)


@pytest.mark.parametrize("generator", [None, seeded(3)])
def test_orders_differ_between_passes(generator: Generator | None) -> None:
    loader: Any = DataLoader(range(50), 8, shuffle=True, generator=generator)
    first, second = [[*chain(*numbers(loader))] for _ in range(2)]
    assert first != second
    assert sorted(first) == sorted(second) == [*range(50)]


def test_orders_of_equal_seeds_are_equal() -> None:
    def order(generator: Generator | None) -> list[int]:
        loader: Any = DataLoader(range(50), 8, shuffle=True, generator=generator)
        return [*chain(*numbers(loader))]

    assert order(seeded(3)) == order(seeded(3)) != order(seeded(4))
    Tensor.manual_seed(3)
    first = order(None)
    assert order(None) != first
    Tensor.manual_seed(3)
    assert order(None) == first


def test_samplers() -> None:
    drawn = [*RandomSampler(range(4), num_samples=10, generator=seeded(0))]
    assert len(drawn) == 10
    assert sorted(drawn[:4]) == sorted(drawn[4:8]) == [0, 1, 2, 3], "each is drawn once in a round"
    assert [*RandomSampler([])] == []
    assert sorted(SubsetRandomSampler([5, 3, 9], seeded(1))) == [3, 5, 9]
    weighted = WeightedRandomSampler([0.0, 1.0, 9.0], 4000, generator=seeded(0))
    counts = np.bincount([*weighted], minlength=3)
    assert counts[0] == 0
    assert 3500 < counts[2] < 3700
    batches: Any = DataLoader(range(6), batch_sampler=BatchSampler([4, 1, 2], 2, False))
    assert numbers(batches) == [[4, 1], [2]]
    assert numbers(DataLoader(range(6), 2, sampler=[5, 0, 3])) == [[5, 0], [3]]


def test_parts_have_all_samples_once() -> None:
    for lengths, sizes in (([6, 5], [6, 5]), ([0.5, 0.5], [6, 5]), ([0.3, 0.3, 0.4], [4, 3, 4])):
        parts = random_split(range(11), lengths, seeded(0))
        assert [len(part) for part in parts] == sizes
        assert sorted(chain(*parts)) == [*range(11)]
    assert [*random_split(range(11), [11], seeded(0))[0]] != [*range(11)]


# *** batches ***


def test_rows_of_tensors_are_picked_at_once() -> None:
    x, y = Tensor.arange(12).reshape(6, 2), np.arange(6) * 10
    rows = TensorDataset(x, y)
    part = Subset(Subset(rows, [5, 3, 1, 0]), [2, 0, 1])
    for dataset, order in ((rows, [*range(6)]), (part, [1, 5, 3])):
        loader: Any = DataLoader(dataset, 4)
        one: Any = DataLoader(dataset, 4, collate_fn=lambda batch: default_collate(batch))
        for batches in (loader, one):
            found = [
                np.concatenate([part.numpy() for part in parts])
                for parts in zip(*batches, strict=True)
            ]
            np.testing.assert_array_equal(found[0], x.numpy()[order])
            np.testing.assert_array_equal(found[1], y[order])


def test_a_data_set_that_changes_rows_is_asked_for_each() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            return tuple([one * 2 for one in super().__getitem__(index)])

    (batch,) = DataLoader(Doubled(Tensor([1, 2, 3])), 3)
    assert batch[0].tolist() == [2, 4, 6]


def test_batches_have_the_containers_of_samples() -> None:
    samples = [
        {
            "pair": (np.float32(n), [n, n + 1]),
            "point": Point(Tensor([n, n]), {"deep": np.full(3, n)}),
            "name": f"sample {n}",
            "flag": n > 1,
            "real": n / 2,
        }
        for n in range(3)
    ]
    found = default_collate(samples)
    assert found["pair"][0].dtype is dtypes.float32
    assert numbers(found["pair"][1]) == [[0, 1, 2], [1, 2, 3]]
    assert isinstance(found["point"], Point)
    assert found["point"].x.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert found["point"].y["deep"].shape == (3, 3)
    assert found["name"] == ["sample 0", "sample 1", "sample 2"]
    assert found["flag"].dtype is dtypes.bool
    assert (found["real"].dtype, found["real"].tolist()) == (dtypes.float64, [0.0, 0.5, 1.0])
    ordered = default_collate([OrderedDict(a=1), OrderedDict(a=2)])
    assert type(ordered) is OrderedDict


def test_without_batches_samples_come_one_by_one() -> None:
    loader: Any = DataLoader([np.ones(2), np.zeros(2)], batch_size=None)
    assert numbers(loader) == [[1.0, 1.0], [0.0, 0.0]]
    assert len(loader) == 2
    assert [*DataLoader(Lines(3), batch_size=None)] == [0, 1, 2]


# *** threads ***


def test_threads_keep_the_order_and_stay_a_few_batches_ahead() -> None:
    begun: list[int] = []
    names: set[str] = set()

    class Slow(Dataset[int]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            begun.append(index)
            names.add(threading.current_thread().name)
            return index

    started: list[int] = []
    loader: Any = DataLoader(
        Slow(), 1, num_workers=2, prefetch_factor=3, worker_init_fn=started.append
    )
    batches = iter(loader)
    assert next(batches).tolist() == [0]
    assert len(begun) <= 1 + 2 * 3
    assert numbers(batches) == [[n] for n in range(1, 40)]
    assert all(name.startswith("ferrule-data") for name in names)
    assert sorted(started) == [*range(len(started))]


def test_an_error_comes_where_its_batch_is_due() -> None:
    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise OSError("file 5 is damaged")
            return index

    loader: Any = DataLoader(Broken(), 2, num_workers=3)
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="file 5 is damaged"):
        next(batches)


# *** errors ***


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.0}, r"batch_size is 2\.0"),
        ({"shuffle": True, "sampler": [1]}, "leave out shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 4}, "leave out batch_size"),
        ({"batch_size": None, "drop_last": True}, "leave out drop_last"),
        ({"num_workers": -1}, "num_workers is -1"),
    ],
)
def test_options_that_exclude_each_other(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DataLoader(range(3), **options)


def test_what_makes_no_data_set_or_batch_says_so() -> None:
    with pytest.raises(ValueError, match="an order of its own"):
        DataLoader(Lines(3), shuffle=True)
    with pytest.raises(ValueError, match=r"as many rows each, not \(2,\), \(3,\)"):
        TensorDataset(Tensor.ones(2), Tensor.ones(3))
    with pytest.raises(ValueError, match=r"\[3, 3\] are not those of parts of 5 samples"):
        random_split(range(5), [3, 3])
    with pytest.raises(ValueError, match="samples by number"):
        ConcatDataset([Lines(3)])
    with pytest.raises(IndexError, match="sample 5 of 5"):
        ConcatDataset(["abc", "de"])[5]
    with pytest.raises(ValueError, match="cannot be drawn"):
        WeightedRandomSampler([1.0, 0.0], 2, replacement=False)
    with pytest.raises(ShapeError, match=r"have the shapes \(2,\), \(3,\); pad them"):
        default_collate([Tensor.ones(2), Tensor.ones(3)])
    with pytest.raises(ValueError, match=r"\[1, 2\] parts; give a collate_fn"):
        default_collate([[1, 2], [1]])
    with pytest.raises(TypeError, match="a batch has tensors"):
        default_collate([object()])


def test_the_names_are_where_pytorch_has_them() -> None:
    from ferrule.torch.utils.data import DataLoader as Imported

    assert torch.utils.data.DataLoader is Imported is DataLoader
    assert torch.Generator().manual_seed(5).initial_seed() == 5
