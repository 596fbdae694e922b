"""PyTorch's database of operators as an oracle: `make test-torch`, or `op_db.py [patterns]`.

For each operator whose name ferrule has too, its sample inputs go through both, forward and
backward, and the results are compared. Prints one line for each operator that fails or is missing,
and the totals.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

from ferrule import Tensor, dtypes, signal

# Where the method's name is not the last part of the operator's.
NAMES = {
    "__getitem__": "__getitem__",
    "nn.functional.binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    "linalg.cross": "cross",
    "nn.functional.unfold": "im2col",
    "nn.functional.conv_transpose1d": "conv_transpose1d",
}
# Where the arguments have another order or default; by name, or by name and variant.
ADAPTED = {
    # A leaf cannot be written while gradients are recorded.
    "zero_": lambda x: x.clone().zero_(),
    # PyTorch's gradient is that of what a log_softmax in front is given.
    "nn.functional.ctc_loss": lambda x, *args, **kwargs: x.log_softmax(-1).ctc_loss(
        *args, **kwargs
    ),
    # Its distance is PyTorch's own function, which does what the default does here.
    "nn.functional.triplet_margin_with_distance_loss": (
        lambda *args, distance_function, **kwargs: Tensor.triplet_margin_with_distance_loss(
            *args, **kwargs
        )
    ),
    "einsum": lambda operands, formula: Tensor.einsum(formula, operands),
    "svd": lambda x, some=True: (lambda u, s, vh: (u, s, vh.mT))(*x.svd(not some)),
    "linalg.vander": lambda x, N=None: x.vander(N, increasing=True),
    "max reduction_with_dim": lambda x, dim, keepdim=False: (
        x.max(dim, keepdim),
        x.argmax(dim, keepdim),
    ),
    "min reduction_with_dim": lambda x, dim, keepdim=False: (
        x.min(dim, keepdim),
        x.argmin(dim, keepdim),
    ),
    "linalg.norm": lambda x, ord=None, dim=None, keepdim=False: linalg_norm(x, ord, dim, keepdim),
    "linalg.pinv singular": lambda a, b: (a @ b.mT).pinv(),
    "linalg.lstsq grad_oriented": lambda a, b, driver: lstsq(a, b, driver),
}


def linalg_norm(x: Tensor, ord: Any, dim: Any, keepdim: bool) -> Tensor:
    """PyTorch's `linalg.norm`: of vectors, or of matrices where the arguments say so."""
    is_matrix = x.ndim == 2 if dim is None else isinstance(dim, tuple | list) and len(dim) == 2
    if ord is None or not is_matrix:
        return x.norm(2 if ord is None else ord, dim, keepdim)
    return x.matrix_norm(ord, (-2, -1) if dim is None else tuple(dim), keepdim)


def lstsq(a: Tensor, b: Tensor, driver: str) -> tuple[Tensor, Tensor]:
    """The solution and the residuals, which LAPACK's driver gelsy does not compute."""
    solution, residuals, *_ = a.lstsq(b)
    return solution, Tensor.zeros(0) if driver == "gelsy" else residuals


# What the two do not share, and why.
LEFT_OUT = {
    "random numbers, of a generator of its own": (
        "cauchy exponential geometric log_normal normal* uniform rand* *dropout* bernoulli "
        "multinomial *rrelu *fractional_max_pool* *svd_lowrank *pca_lowrank"
    ),
    "memory that is not initialised": "empty* new_empty* resize*",
    "complex numbers": (
        "*complex* *_as_real conj* resolve_* fft.* "
        "cdouble cfloat chalf *eigvals *eig *stft polar sgn real imag"
    ),
    "compiled by PyTorch, or inside it": (
        "jiterator* *sparse* to_sparse grid_sampler_* *_backward _[a-z]* torch.* native_* hash* "
        "slice __rdiv__"
    ),
    "PyTorch's memory": "as_strided* *[!x]_copy set_* unsafe_* alias*",
    "deprecated there": "masked.*",
    "properties, which are no functions": "[TH] m[TH]",
    "x.gradient() is of the tape; NumPy's differences are x.diff()": "gradient",
    "a list of edges, in more than one dimension": "histogramdd",
    "(in, out) is the shape of a weight here": "nn.functional.linear*",
    "LAPACK's packed factors, drivers and error codes": (
        "linalg.lstsq lu* linalg.lu* linalg.ldl* geqrf ormqr linalg.householder_product *_ex"
    ),
    "gradients there of what is outside the triangle that is read": (
        "cholesky_[is]* linalg.pinv?hermitian"
    ),
    "where the condition is the tensor itself here": "where",
    "functions of physics and statistics, of which SciPy has more": (
        "igamma* special.airy* special.bessel* special.*polynomial* special.modified* "
        "special.scaled* special.spherical*"
    ),
}
# Whose results two libraries may each choose, and rightly.
UNDETERMINED = ("linalg.eigh",)
# Where PyTorch's own float32 gradients are as far off as ours or further, compared with float64.
INEXACT = {"nn.functional.ctc_loss": 2e-4, "logcumsumexp": 5e-3, "cov": 5e-5}
SAMPLES = 40  # of each operator
RTOL, ATOL = 5e-5, 1e-5  # float32, functions of several operations


@dataclass
class Outcome:
    """What became of one operator's samples."""

    name: str
    passed: int = 0
    failures: list[str] = field(default_factory=list)


def full_name(op: Any) -> str:
    """An operator's name, and the variant's if it has one."""
    return f"{op.name} {op.variant_test_name}".rstrip()


def reason_left_out(name: str) -> str | None:
    """Why an operator is not compared, if it is not."""
    for reason, patterns in LEFT_OUT.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split()):
            return reason
    return None


def method_of(op: Any) -> Callable[..., Any] | None:
    """ferrule's method of an operator's name."""
    name: str = op.name
    for known in (full_name(op), name):
        if known in ADAPTED:
            return ADAPTED[known]
    home = signal.windows if name.startswith("signal.windows.") else Tensor
    method = getattr(home, NAMES.get(name, name.rpartition(".")[2]), None)
    return method if callable(method) else None


# *** from one library to the other ***


def to_ferrule(thing: Any) -> Any:
    """Tensors, dtypes and sizes, in any nesting, as ferrule's."""
    if isinstance(thing, torch.Tensor):
        array = thing.detach().numpy()
        # Elements that share memory in PyTorch are copied: ferrule's leaves own theirs.
        tensor = Tensor(np.array(array))
        tensor.requires_grad = True if thing.requires_grad else None
        return tensor
    if isinstance(thing, torch.dtype):
        return dtypes.from_name(str(thing).removeprefix("torch."))
    if isinstance(thing, torch.Size):
        return tuple(thing)
    if isinstance(thing, list | tuple):  # also PyTorch's own kinds of list
        return type(thing)(to_ferrule(part) for part in thing)
    return thing


def arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sample's arguments, without those that say where PyTorch's memory is, or of which kind."""
    kwargs = {
        key: value
        for key, value in sample.kwargs.items()
        if key not in ("device", "layout", "pin_memory", "memory_format", "requires_grad")
    }
    return (sample.input, *sample.args), kwargs


def leaves(thing: Any, kind: type) -> Iterator[Any]:
    """All tensors in a nesting, in order."""
    if isinstance(thing, kind):
        yield thing
    elif isinstance(thing, dict):
        for part in thing.values():
            yield from leaves(part, kind)
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from leaves(part, kind)


# *** comparing ***


def array_of(tensor: Any) -> Any:
    """PyTorch's tensor as an array; NumPy has no bfloat16, and ml_dtypes' is another."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return tensor.float().numpy().astype(dtypes.bfloat16.np)
    return tensor.numpy()


def compare(mine: Any, theirs: Any, what: str, more: float = 0.0) -> str | None:
    """How two arrays differ, or None."""
    if mine.shape != theirs.shape:
        return f"{what}: shape {mine.shape}, not {theirs.shape}"
    if np.issubdtype(theirs.dtype, np.integer) or theirs.dtype == np.bool_:
        if not np.array_equal(mine, theirs):
            return f"{what}: differs in {np.sum(mine != theirs)} of {theirs.size}"
        return None
    # Sums of large terms may be small: what is lost is a part of the largest.
    finite = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
    if not np.allclose(mine, theirs, RTOL, ATOL + more + finite * 5e-6, equal_nan=True):
        with np.errstate(all="ignore"):
            error = np.nanmax(np.abs(mine.astype(np.float64) - theirs))
        return f"{what}: differs by {error:.3g}"
    return None


def check_sample(op: Any, method: Callable[..., Any], sample: Any) -> str | None:
    """What is wrong with one sample, or None."""
    args, kwargs = arguments(sample)
    # What is not determined, such as the signs of eigenvectors, PyTorch's samples take away.
    determined = sample.output_process_fn_grad if op.name in UNDETERMINED else lambda x: x
    expected = list(leaves(determined(op.op(*args, **kwargs)), torch.Tensor))
    my_args, my_kwargs = to_ferrule(args), {k: to_ferrule(v) for k, v in kwargs.items()}
    got = list(leaves(determined(method(*my_args, **my_kwargs)), Tensor))
    if len(got) != len(expected):
        return f"{len(got)} results, not {len(expected)}"
    for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        wrong = compare(mine.detach().numpy(), array_of(theirs), f"result {place}")
        if wrong:
            return wrong
    inputs = zip(
        leaves((args, kwargs), torch.Tensor), leaves((my_args, my_kwargs), Tensor), strict=True
    )
    results = list(zip(expected, got, strict=True))
    return check_gradients(list(inputs), results, INEXACT.get(op.name, 0.0))


def check_gradients(
    inputs: list[tuple[Any, Any]], results: list[tuple[Any, Any]], more: float
) -> str | None:
    """Gradients of a weighted sum of the results, for all inputs that need one."""
    pairs = [(theirs, mine) for theirs, mine in inputs if theirs.requires_grad]
    results = [(theirs, mine) for theirs, mine in results if theirs.requires_grad]
    if not pairs or not results:
        return None
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(theirs.shape).astype(np.float32) for theirs, _ in results]
    their_loss = sum(
        (r * torch.from_numpy(np.asarray(w)).to(r.dtype)).sum()
        for (r, _), w in zip(results, weights, strict=True)
    )
    theirs = torch.autograd.grad(their_loss, [pair[0] for pair in pairs], allow_unused=True)
    my_loss = sum((r * Tensor(w)).sum() for (_, r), w in zip(results, weights, strict=True))
    if my_loss.requires_grad:
        my_loss.backward()
    for place, ((source, mine), their) in enumerate(zip(pairs, theirs, strict=True)):
        their = torch.zeros_like(source) if their is None else their.detach()
        my = np.zeros(source.shape, np.float32) if mine.grad is None else mine.grad.numpy()
        wrong = compare(my, their.numpy(), f"gradient {place}", more)
        if wrong:
            return wrong
    return None


def check(op: Any, method: Callable[..., Any]) -> Outcome:
    """All samples of one operator."""
    outcome = Outcome(full_name(op))
    kinds = op.supported_dtypes("cpu")
    kind = next(k for k in (torch.float32, torch.int64, torch.bool, *kinds) if k in kinds)
    backward = kind is torch.float32 and op.supports_autograd
    samples: Iterable[Any] = op.sample_inputs("cpu", kind, requires_grad=backward)
    for sample in islice(samples, SAMPLES):
        if sample.kwargs.get("dropout_p"):
            continue  # random numbers
        try:
            wrong = check_sample(op, method, sample)
        except Exception as error:  # any error is an outcome to be shown
            wrong = f"{type(error).__name__}: {error}".partition("\n")[0]
        if wrong is None:
            outcome.passed += 1
        else:
            shown = str(sample.summary() if hasattr(sample, "summary") else "").replace("\n", " ")
            outcome.failures.append(f"{wrong}   {shown}")
    return outcome


def main(argv: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"], help="operators, as in shells")
    parser.add_argument("--failures", type=int, default=1, help="how many to show of each")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    missing, left_out, outcomes = [], 0, []
    for op in op_db:
        if not any(fnmatch.fnmatchcase(op.name, pattern) for pattern in options.patterns):
            continue
        method = method_of(op)
        if reason_left_out(full_name(op)) or not op.supported_dtypes("cpu"):
            left_out += 1
        elif method is None:
            missing.append(op.name)
        else:
            outcome = check(op, method)
            outcomes.append(outcome)
            if outcome.failures:
                total = outcome.passed + len(outcome.failures)
                print(
                    f"FAIL {outcome.name}: {len(outcome.failures)} of {total} samples", flush=True
                )
                for failure in outcome.failures[: options.failures]:
                    print(f"     {failure[:300]}", flush=True)
    good = sum(not outcome.failures for outcome in outcomes)
    print(f"missing: {' '.join(dict.fromkeys(missing))}")
    print(
        f"{good} of {len(outcomes)} operators that both have agree on all samples "
        f"({sum(o.passed for o in outcomes)} samples); {len(missing)} missing; "
        f"{left_out} left out: {'; '.join(LEFT_OUT)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
