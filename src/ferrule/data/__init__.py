"""Batches for training, under PyTorch's names: data sets, samplers, and `DataLoader`.

>>> from ferrule import Tensor
>>> from ferrule.data import DataLoader, TensorDataset
>>> rows = TensorDataset(Tensor.arange(4).reshape(4, 1), Tensor([0, 1, 0, 1]))
>>> for x, y in DataLoader(rows, batch_size=2):
...     print(x.tolist(), y.tolist())
[[0], [1]] [0, 1]
[[2], [3]] [0, 1]
"""

from ferrule.data.collate import default_collate, default_convert
from ferrule.data.datasets import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from ferrule.data.generator import Generator
from ferrule.data.loader import DataLoader
from ferrule.data.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "Generator",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "random_split",
]
