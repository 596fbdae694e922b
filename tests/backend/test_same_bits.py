"""Plain calls, the first call of a captured function and its replays compute the same bits."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ferrule import Context, Tensor, TinyJit, fft, signal

RNG = np.random.default_rng(11)
Results = list[bytes]


@pytest.fixture(autouse=True)
def one_length() -> Iterator[None]:
    """Other tests call these functions with other lengths, for which there would be one plan."""
    with Context(FERRULE_SKIP="lengths"):
        yield


def bits(result: Any) -> Results:
    """The bytes of one tensor or of several."""
    tensors = [result] if isinstance(result, Tensor) else list(result)
    return [tensor.numpy().tobytes() for tensor in tensors]


def realized(result: Any) -> Any:
    for tensor in [result] if isinstance(result, Tensor) else result:
        tensor.realize()
    return result


def captured(function: Callable[..., Any]) -> Any:
    return TinyJit(lambda *arguments: realized(function(*arguments)))


def positive(x: Tensor) -> Tensor:
    """A symmetric matrix with positive eigenvalues."""
    return x @ x.T + Tensor.eye(x.shape[0], dtype=x.dtype)


# A function, and the shape of what it is given.
CASES: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "fft": (fft.fft, (3, 100, 2)),
    "ifft": (fft.ifft, (3, 100, 2)),
    "fft along rows": (lambda x: fft.fft(x, dim=0), (130, 3, 2)),
    "fft of a large prime": (fft.fft, (3, 67, 2)),
    "fft2": (fft.fft2, (12, 16, 2)),
    "ifft2": (fft.ifft2, (12, 16, 2)),
    "fftn": (fft.fftn, (4, 6, 8, 2)),
    "ifftn": (fft.ifftn, (4, 6, 8, 2)),
    "rfft of few points": (fft.rfft, (3, 64)),
    "rfft": (fft.rfft, (3, 1000)),
    "rfft of an odd number": (fft.rfft, (3, 243)),
    "irfft": (fft.irfft, (3, 129, 2)),
    "irfft of an odd number": (lambda x: fft.irfft(x, 243), (3, 122, 2)),
    "rfft2": (fft.rfft2, (12, 16)),
    "irfft2": (fft.irfft2, (12, 9, 2)),
    "rfftn": (fft.rfftn, (4, 6, 8)),
    "irfftn": (fft.irfftn, (4, 6, 5, 2)),
    "between other operations": (
        lambda x: fft.irfft(fft.rfft(x * 0.3) * fft.rfft(x + 1.0).square(), 500).sum(-1),
        (4, 500),
    ),
    "used twice": (lambda x: (s := fft.rfft(x)).square().sum() + s.abs().max(), (2, 300)),
    "stft": (lambda x: signal.stft(x, 64, 16), (500,)),
    "sort": (lambda x: x.sort(), (4, 50)),
    "argsort": (lambda x: x.argsort(), (4, 50)),
    "topk": (lambda x: x.topk(5), (4, 50)),
    "kthvalue": (lambda x: x.kthvalue(7), (4, 50)),
    "median": (lambda x: x.median(-1), (4, 51)),
    "quantile": (lambda x: x.quantile(0.3, -1), (4, 50)),
    "det": (lambda x: x.det(), (6, 6)),
    "slogdet": (lambda x: x.slogdet(), (6, 6)),
    "inverse": (lambda x: x.inverse(), (6, 6)),
    "pinv": (lambda x: x.pinv(), (6, 4)),
    "solve": (lambda x: positive(x).solve(x), (6, 6)),
    "lstsq": (lambda x: x.lstsq(x[:, :2])[0], (8, 4)),
    "cholesky": (lambda x: positive(x).cholesky(), (6, 6)),
    "qr": (lambda x: x.qr(), (6, 4)),
    "svd": (lambda x: x.svd(), (6, 4)),
    "eigh": (lambda x: positive(x).eigh(), (6, 6)),
    "matrix_exp": (lambda x: x.matrix_exp(), (6, 6)),
    "cumsum": (lambda x: x.cumsum(-1), (3, 3000)),
    "cumprod": (lambda x: x.cumprod(-1), (3, 3000)),
    "cummax": (lambda x: x.cummax(-1), (3, 3000)),
    "cummin": (lambda x: x.cummin(-1), (3, 3000)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (3, 3000)),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_functions(name: str, dtype: str) -> None:
    function, shape = CASES[name]
    again = captured(function)
    for _ in range(4):
        x = RNG.normal(size=shape).astype(dtype)
        plain = bits(function(Tensor(x)))
        assert bits(function(Tensor(x))) == plain
        assert bits(again(Tensor(x))) == plain


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "cumsum", "cumprod", "logcumsumexp"])
def test_gradients(name: str) -> None:
    function, shape = CASES[name]

    def gradient(x: Tensor) -> Tensor:
        at = x.detach().requires_grad_(True)
        return function(at).square().sum().gradient(at)[0]

    again = captured(gradient)
    for _ in range(4):
        x = RNG.normal(size=shape).astype("float32")
        assert bits(again(Tensor(x))) == bits(gradient(Tensor(x)))


def filled(fill: Callable[[Tensor], Any]) -> Callable[[], Tensor]:
    """What a method in place puts into memory of its own."""

    def draw() -> Tensor:
        x = Tensor.zeros(40).contiguous()
        fill(x)
        return x

    return draw


WEIGHTS = RNG.random(20)
DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: Tensor.rand(5, 7),
    "rand of float64": lambda: Tensor.rand(5, 7, dtype="float64"),
    "rand_like": lambda: Tensor.ones(5, 7).rand_like(),
    "randn": lambda: Tensor.randn(5, 7),
    "randn_like": lambda: Tensor.ones(5, 7).randn_like(),
    "randint": lambda: Tensor.randint(5, 7, low=-3, high=1000),
    "randint_like": lambda: Tensor.ones(5, 7).randint_like(9),
    "randperm": lambda: Tensor.randperm(50),
    "uniform": lambda: Tensor.uniform(5, 7, low=-1.0, high=3.0),
    "normal": lambda: Tensor.normal(5, 7, mean=2.0, std=3.0),
    "scaled_uniform": lambda: Tensor.scaled_uniform(5, 7),
    "glorot_uniform": lambda: Tensor.glorot_uniform(5, 7),
    "kaiming_uniform": lambda: Tensor.kaiming_uniform(5, 7),
    "kaiming_normal": lambda: Tensor.kaiming_normal(5, 7),
    "bernoulli": lambda: Tensor(WEIGHTS).bernoulli(),
    "multinomial": lambda: Tensor(WEIGHTS).multinomial(6),
    "multinomial with replacement": lambda: Tensor(WEIGHTS).multinomial(30, replacement=True),
    "dropout": lambda: Tensor.ones(50).dropout(0.4, training=True),
    "dropout1d": lambda: Tensor.ones(4, 5, 3).dropout1d(0.4, training=True),
    "dropout2d": lambda: Tensor.ones(4, 5, 3, 2).dropout2d(0.4, training=True),
    "dropout3d": lambda: Tensor.ones(4, 5, 3, 2, 2).dropout3d(0.4, training=True),
    "alpha_dropout": lambda: Tensor.ones(50).alpha_dropout(0.4, training=True),
    "rrelu": lambda: (-Tensor.ones(50)).rrelu(training=True),
    "gumbel_softmax": lambda: Tensor.zeros(4, 5).gumbel_softmax(),
    "uniform_": filled(lambda x: x.uniform_(-1.0, 2.0)),
    "normal_": filled(lambda x: x.normal_(1.0, 2.0)),
    "exponential_": filled(lambda x: x.exponential_(2.0)),
    "bernoulli_": filled(lambda x: x.bernoulli_(0.3)),
    "several": lambda: [Tensor.rand(3), Tensor.randn(4), Tensor.randint(5, low=0, high=9)],
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str) -> None:
    """One seed gives one sequence of draws, plain or captured."""
    draw = DRAWS[name]
    Tensor.manual_seed(5)
    plain = [bits(draw()) for _ in range(4)]
    assert len({b"".join(each) for each in plain}) == 4
    Tensor.manual_seed(5)
    again = captured(draw)
    assert [bits(again()) for _ in range(4)] == plain
