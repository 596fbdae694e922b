"""Training or evaluation: a layer's own mode, else that of the thread; and who asked for it."""

import copy
import warnings
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import nn
from ferrule.errors import TrainingModeWarning
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

ONES = np.ones(6, np.float32)


@pytest.fixture(autouse=True)
def _nobody_has_asked() -> None:
    Tensor.training = None


def drops(layer: Callable[[Tensor], Tensor]) -> bool:
    """Whether a layer that drops everything in training did."""
    found = layer(Tensor(ONES)).numpy()
    assert (found == 0).all() or (found != 0).all()
    return bool((found == 0).all())


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function gives in a thread of its own; what it raises is raised here."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


# *** the mode of a thread ***


def test_blocks_nest() -> None:
    assert not Tensor.training
    with Tensor.train():
        with Tensor.train(False), Tensor.train(), Tensor.train(False):
            assert (Tensor.training, Tensor(1.0).training) == (False, False)
        assert (Tensor.training, Tensor(1.0).training) == (True, True)
    assert not Tensor.training


def test_one_block_is_entered_again_inside() -> None:
    block = Tensor.train()
    with block, Tensor.train(False), block:
        assert Tensor.training
    assert not Tensor.training


def test_an_error_ends_a_block() -> None:
    with pytest.raises(KeyError), Tensor.train():
        raise KeyError
    assert not Tensor.training


def test_assignment_lasts_until_a_block_around_ends() -> None:
    Tensor.training = True
    try:
        assert Tensor.training is True
        with Tensor.train(False):
            Tensor.training = True
            assert drops(lambda x: x.dropout(1.0))
        assert Tensor.training
    finally:
        Tensor.training = False
    assert not drops(lambda x: x.dropout(1.0))


def test_assignment_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "training", True)
        assert drops(lambda x: x.dropout(1.0))
    assert not Tensor.training
    Tensor.training = True
    del Tensor.training
    assert not Tensor.training


def test_a_new_thread_starts_in_evaluation() -> None:
    with Tensor.train():
        assert in_thread(lambda: Tensor.training) is False
        assert in_thread(lambda: drops(nn.Dropout(1.0))) is False

    def trains() -> bool:
        Tensor.training = True
        return drops(nn.Dropout(1.0))

    assert in_thread(trains)
    assert not Tensor.training


def test_threads_do_not_see_each_other() -> None:
    """Two threads are inside one decorated function, and leave it in the order of entering."""
    inside = Barrier(2)
    left = Barrier(2)

    @Tensor.train()
    def function(first: bool) -> bool:
        inside.wait()
        if not first:
            left.wait()
        return Tensor.training

    found: dict[bool, tuple[bool, bool, bool]] = {}

    def run(first: bool) -> None:
        Tensor.training = first
        within = function(first)
        after = Tensor.training
        if first:
            left.wait()
        found[first] = within, after, Tensor.training

    threads = [Thread(target=run, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {True: (True, True, True), False: (True, False, False)}


# *** a layer's own mode ***


def test_a_layers_own_mode_goes_first() -> None:
    layer = nn.Dropout(1.0)
    for mode in (True, False):
        with Tensor.train(mode):
            assert drops(layer) is layer.training is mode
            assert drops(layer.train()) is layer.training is True
            assert drops(layer.eval()) is layer.training is False
            assert Tensor.training is mode
            layer.training = None
            assert drops(layer) is layer.training is mode


def test_it_is_that_of_all_layers_inside() -> None:
    inner = nn.Sequential(nn.Dropout(1.0), Tensor.relu)
    model = nn.Sequential(inner, lambda x: x + 1)
    assert model.train() is model
    assert inner[0].training
    assert model(Tensor(ONES)).tolist() == [1.0] * 6
    inner[0].eval()
    assert model(Tensor(ONES)).tolist() == [2.0] * 6
    assert (len(model), len(inner), list(inner)) == (2, 2, [inner[0], Tensor.relu])
    assert nn.state.get_state_dict(model) == {}
    assert "training" not in repr(model)


def test_functions_go_by_the_layer_that_calls_them() -> None:
    model = nn.Sequential(lambda x: x.dropout(1.0))
    assert drops(model.train())
    assert not drops(model.eval())


class Model:
    """A model as users write it: no base class, layers in attributes, lists and dicts."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(6, 6), nn.BatchNorm1d(6)]
        self.named = {"drop": nn.Dropout(0.5)}
        self.again = self

    def __call__(self, x: Tensor) -> Tensor:
        return self.named["drop"](self.layers[1](self.layers[0](x)))


def test_set_training_finds_all_layers() -> None:
    model = Model()
    layers = [*model.layers, model.named["drop"]]
    nn.set_training(model)
    assert [layer.training for layer in layers] == [True] * 3
    with Tensor.train():
        nn.set_training(model, False)
        assert [layer.training for layer in layers] == [False] * 3
        nn.set_training(model, None)
        assert [layer.training for layer in layers] == [True] * 3


def test_a_copy_has_the_mode() -> None:
    layer = nn.Dropout(1.0).train()
    assert drops(copy.deepcopy(layer))
    assert nn.Dropout(1.0).training is False


def test_it_holds_in_every_thread() -> None:
    layer = nn.Dropout(1.0).train()
    assert in_thread(lambda: drops(layer))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(4, momentum=0.0),
        lambda: nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        lambda: nn.LSTM(4, 4, 2, dropout=0.5),
        lambda: nn.Dropout1d(0.5),
        lambda: nn.AlphaDropout(0.5),
        lambda: nn.RReLU(),
    ],
    ids=["BatchNorm", "Attention", "Transformer", "LSTM", "Dropout1d", "AlphaDropout", "RReLU"],
)
def test_every_kind_of_layer(device: str, make: Callable[[], Any]) -> None:
    layer = make()
    x = Tensor(np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32))
    inputs = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)

    def result() -> Any:
        Tensor.manual_seed(1)
        found = layer(*inputs)
        return (found[0] if isinstance(found, tuple) else found).numpy()

    evaluated = result()
    with Tensor.train():
        trained = result()
        np.testing.assert_allclose(layer.eval() and result(), evaluated, rtol=1e-4, atol=1e-6)
    assert np.abs(trained - evaluated).max() > 1e-3
    np.testing.assert_allclose(layer.train() and result(), trained, rtol=1e-4, atol=1e-6)


# *** captures and recomputing ***


def test_a_replay_goes_by_the_mode(device: str) -> None:
    layer = nn.Dropout(1.0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return layer(x).realize()

    for mode in (False, False, False, True, True, True, False, True):
        with Tensor.train(mode):
            assert drops(step) is mode
    for own in (True, False, True, None):
        layer.training = own
        for mode in (False, True):
            with Tensor.train(mode):
                assert drops(step) is (mode if own is None else own)
    with Tensor.train():
        assert in_thread(lambda: drops(step)) is False


def test_recomputing_has_the_mode_of_the_first_time(device: str) -> None:
    def gradient(training: bool) -> list[float]:
        x = Tensor(ONES, requires_grad=True)
        with Tensor.train(training):
            y = ferrule.checkpoint(lambda x: (x * 2).dropout(1.0) + x)(x).sum()
        with Tensor.train(not training):
            y.backward()
        found: list[float] = x.grad.tolist()
        return found

    assert gradient(True) == [1.0] * 6
    assert gradient(False) == [3.0] * 6


# *** evaluation that nobody asked for ***


def optimizer_of(model: object) -> nn.optim.Optimizer:
    return nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)


def train_once(model: Callable[[Tensor], Tensor], optimizer: nn.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(Tensor(np.eye(6, dtype=np.float32))).square().sum().backward()
    optimizer.step()


FORGOTTEN: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "dropout": ("dropout", lambda: [nn.Linear(6, 4), nn.Dropout(0.5)]),
    "a function": ("dropout", lambda: [nn.Linear(6, 4), lambda x: x.dropout(0.5)]),
    "channels": ("dropout1d", lambda: [nn.Linear(6, 4), nn.Dropout1d(0.5)]),
    "alpha": ("alpha_dropout", lambda: [nn.Linear(6, 4), nn.AlphaDropout(0.5)]),
    "batch": ("batch normalisation", lambda: [nn.Linear(6, 4), nn.BatchNorm1d(4)]),
    "batch first": ("batch normalisation", lambda: [nn.BatchNorm1d(6), nn.Linear(6, 4)]),
    "transformer": ("dropout", lambda: [nn.TransformerEncoderLayer(6, 2, 8)]),
}


@pytest.mark.parametrize("case", FORGOTTEN.items(), ids=lambda case: case[0])
def test_a_step_warns_once(device: str, case: tuple[str, tuple[str, Any]]) -> None:
    _, (what, layers) = case
    model = nn.Sequential(*layers())
    optimizer = optimizer_of(model)
    with pytest.warns(TrainingModeWarning, match=rf"SGD\.step: {what} ran as in evaluation"):
        train_once(model, optimizer)
    train_once(model, optimizer)  # warnings are errors in these tests


ASKED: dict[str, Callable[[nn.Sequential], Any]] = {
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "set_training": lambda model: nn.set_training(model, False),
    "True": lambda model: setattr(Tensor, "training", True),
    "False": lambda model: setattr(Tensor, "training", False),
}


@pytest.mark.parametrize("ask", ASKED.items(), ids=lambda ask: ask[0])
def test_whoever_asks_is_not_warned(ask: tuple[str, Callable[[nn.Sequential], Any]]) -> None:
    def run() -> None:
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        ask[1](model)
        train_once(model, optimizer_of(model))

    in_thread(run)  # of its own, because an assignment is for the rest of the thread


def test_what_has_no_part_in_the_gradient_does_not_warn() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    optimizer = optimizer_of(model)
    for _ in range(2):
        model(Tensor(np.eye(6, dtype=np.float32))).realize()  # a look at the model before a step
        with Tensor.no_grad():
            model(Tensor(np.eye(6, dtype=np.float32))).realize()
        with Tensor.train():
            train_once(model, optimizer)
    plain = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.0), nn.LayerNorm(4))
    train_once(plain, optimizer_of(plain))


def test_other_optimisers_do_not_warn() -> None:
    forgotten = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    forgotten(Tensor(np.eye(6, dtype=np.float32))).sum().backward()
    plain = nn.Sequential(nn.Linear(6, 4))
    train_once(plain, optimizer_of(plain))
    optimizer = optimizer_of(forgotten)
    with Tensor.train():
        train_once(forgotten, optimizer)  # whose gradients are new
    forgotten(Tensor(np.eye(6, dtype=np.float32))).sum().backward()
    with Tensor.train(), pytest.warns(TrainingModeWarning):
        optimizer.step()


def test_a_captured_step_warns_when_it_first_runs(device: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    optimizer = optimizer_of(model)

    @TinyJit
    def step() -> None:
        train_once(model, optimizer)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            step()
    assert [warning.category for warning in caught] == [TrainingModeWarning]


def test_lbfgs_warns() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    optimizer = nn.optim.LBFGS(nn.state.get_parameters(model), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(Tensor(np.eye(6, dtype=np.float32))).square().sum()
        loss.backward()
        return loss

    with pytest.warns(TrainingModeWarning, match=r"LBFGS\.step: dropout"):
        optimizer.step(closure)
