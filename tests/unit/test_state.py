"""The names of a model's tensors, loading into them, and safetensors files."""

import errno
import json
import os
import pickle
import re
import sys
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ferrule import Tensor, dtypes, grad, nn, vmap
from ferrule.base.config import Context
from ferrule.helpers import GlobalCounters
from ferrule.nn.state import (
    Mismatch,
    StateError,
    functional_call,
    get_parameters,
    get_state_dict,
    load_state_dict,
    npz_load,
    npz_save,
    safe_load,
    safe_save,
    torch_load,
    torch_save,
)

Pair = namedtuple("Pair", ["left", "right"])


@pytest.fixture(autouse=True)
def numpy_device() -> Any:
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


class Layer:
    def __init__(self, *values: float) -> None:
        self.weight = Tensor(list(values))
        self.size = len(values)
        self.bias: Tensor | None = None


class Model:
    kind = Layer

    def __init__(self) -> None:
        self.layers = [Layer(1.0), Layer(2.0, 3.0)]
        self.heads = {"a": Layer(4.0), 7: (Tensor([5.0]),)}
        self.pair = Pair(Layer(6.0), None)
        self.owner = self  # a cycle


NAMES = ["layers.0.weight", "layers.1.weight", "heads.a.weight", "heads.7.0", "pair.left.weight"]


def test_names_follow_the_structure() -> None:
    state = get_state_dict(Model())
    assert list(state) == NAMES
    assert [tensor.tolist() for tensor in state.values()] == [
        [1.0],
        [2.0, 3.0],
        [4.0],
        [5.0],
        [6.0],
    ]


def test_a_prefix_is_put_before_the_names() -> None:
    assert list(get_state_dict(Layer(1.0), "model.")) == ["model.weight"]
    assert list(get_state_dict(Tensor([1.0]), "x")) == ["x"]


def test_tied_weights_have_two_names_and_are_one_parameter() -> None:
    layer = Layer(1.0)
    assert list(get_state_dict([layer, layer])) == ["0.weight", "1.weight"]
    assert get_parameters([layer, layer]) == [layer.weight]


def test_one_name_for_two_tensors_is_an_error() -> None:
    with pytest.raises(StateError, match=r"two tensors are called 'a.b'; rename one of them"):
        get_state_dict({"a": {"b": Tensor([1.0])}, "a.b": Tensor([2.0])})


def test_tensors_and_arrays_are_loaded() -> None:
    model = [Layer(1.0), Layer(2.0, 3.0)]
    state = {"0.weight": Tensor([10.0]), "1.weight": np.array([20.0, 30.0])}
    assert load_state_dict(model, state) == Mismatch((), ())
    assert model[0].weight.tolist() == [10.0]
    assert model[1].weight.tolist() == [20.0, 30.0]


def test_values_take_the_dtype_of_the_parameter() -> None:
    layer = Layer(1.0, 2.0)
    load_state_dict(layer, {"weight": np.array([3, 4])})
    assert layer.weight.dtype is dtypes.float32
    assert layer.weight.tolist() == [3.0, 4.0]


def test_views_and_gradients_stay_with_the_parameter() -> None:
    layer = Layer(1.0, 2.0)
    layer.weight.requires_grad = True
    first = layer.weight.detach()[0]
    load_state_dict(layer, {"weight": Tensor([5.0, 6.0])})
    assert first.item() == 5.0
    assert layer.weight.requires_grad


def test_parameters_may_be_swapped() -> None:
    model = [Layer(1.0), Layer(2.0)]
    load_state_dict(model, {"0.weight": model[1].weight, "1.weight": model[0].weight})
    assert [layer.weight.item() for layer in model] == [2.0, 1.0]


def test_what_is_loaded_is_a_copy() -> None:
    layer, value = Layer(1.0), Tensor([2.0])
    load_state_dict(layer, {"weight": value})
    value.assign([3.0])
    assert layer.weight.item() == 2.0


def test_all_mismatches_are_named_and_nothing_is_loaded() -> None:
    model = [Layer(1.0), Layer(2.0, 3.0), Layer(4.0)]
    state = {"0.weight": Tensor([9.0]), "1.weight": Tensor([9.0]), "extra": Tensor([9.0])}
    message = (
        "load_state_dict: 1.weight has shape (1,) where the model has (2,); missing 2.weight;"
        " unexpected extra (strict=False loads the rest)"
    )
    with pytest.raises(StateError, match=re.escape(message)):
        load_state_dict(model, state)
    assert model[0].weight.item() == 1.0


def test_long_lists_of_names_are_cut() -> None:
    with pytest.raises(StateError, match=r"missing 0.weight, .*, 4.weight and 3 more"):
        load_state_dict([Layer(1.0) for _ in range(8)], {})


def test_a_value_that_cannot_be_converted_changes_nothing() -> None:
    model = [Layer(1.0), Layer(2.0)]
    with pytest.raises(TypeError):
        load_state_dict(model, {"0.weight": Tensor([9.0]), "1.weight": np.array(["text"])})
    assert model[0].weight.item() == 1.0


def test_loading_loosely_reports_what_was_left() -> None:
    model = [Layer(1.0), Layer(2.0)]
    left = load_state_dict(model, {"0.weight": Tensor([9.0]), "x": Tensor([0.0])}, strict=False)
    assert left == Mismatch(missing=("1.weight",), unexpected=("x",))
    assert [layer.weight.item() for layer in model] == [9.0, 2.0]


@pytest.mark.parametrize("strict", [True, False])
def test_names_behind_a_prefix_are_no_names_of_the_model(strict: bool) -> None:
    """Loosely, nothing at all would be loaded, and nobody would know."""
    model = [Layer(1.0), Layer(2.0)]
    loaded = {"module.0.weight": Tensor([9.0]), "module.1.weight": Tensor([8.0])}
    change = r"\{name\.removeprefix\('module\.'\): x for name, x in \.\.\.\}"
    with pytest.raises(StateError, match=f"names differ by 'module.': load {change}"):
        load_state_dict(model, loaded, strict=strict)
    with pytest.raises(StateError, match=r"load \{'0\.' \+ name: x for name, x in \.\.\.\}"):
        load_state_dict([Layer(1.0)], {"weight": Tensor([9.0])}, strict=strict)
    assert load_state_dict(model, {}, strict=False).missing == ("0.weight", "1.weight")


def test_a_whole_checkpoint_is_no_state() -> None:
    checkpoint: Any = {"model": {"weight": Tensor([9.0])}, "epoch": 3}
    with pytest.raises(
        StateError, match=r"model is dict, .*; load what is in it: state\['model'\]"
    ):
        load_state_dict(Layer(1.0), checkpoint)
    with pytest.raises(StateError, match=r"epoch is int, not a tensor or an array; leave it out"):
        load_state_dict(Layer(1.0), {"epoch": checkpoint["epoch"]})


def test_a_wrong_shape_is_an_error_even_loosely() -> None:
    with pytest.raises(StateError, match=r"weight has shape \(2,\) where the model has \(1,\)"):
        load_state_dict(Layer(1.0), {"weight": Tensor([1.0, 2.0])}, strict=False)


# Files

FILE_DTYPES = [
    dtypes.bool,
    dtypes.int8,
    dtypes.int16,
    dtypes.int32,
    dtypes.int64,
    dtypes.uint8,
    dtypes.uint16,
    dtypes.uint32,
    dtypes.uint64,
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float32,
    dtypes.float64,
    dtypes.float8_e4m3,
    dtypes.float8_e5m2,
]


@pytest.mark.parametrize("dtype", FILE_DTYPES, ids=lambda dtype: dtype.name)
def test_files_keep_dtype_shape_and_bits(dtype: Any, tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [0, 0, 1]]).astype(dtype.np)
    safe_save({"a.b": Tensor(values), "empty": Tensor(values[:0])}, tmp_path / "x.safetensors")
    loaded = safe_load(tmp_path / "x.safetensors")
    assert set(loaded) == {"a.b", "empty"}
    assert loaded["a.b"].dtype is dtype
    assert loaded["a.b"].numpy().tobytes() == values.tobytes()
    assert loaded["empty"].shape == (0, 3)


def test_numbers_without_axes_and_transposed_tensors_are_saved(tmp_path: Path) -> None:
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    safe_save({"t": Tensor(matrix).T, "n": Tensor(2.5)}, tmp_path / "x")
    loaded = safe_load(tmp_path / "x")
    np.testing.assert_array_equal(loaded["t"].numpy(), matrix.T)
    assert loaded["n"].shape == ()
    assert loaded["n"].item() == 2.5


def test_other_programs_read_the_files(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "x.safetensors"
    safe_save({"x": Tensor([1.5, 2.5])}, path, metadata={"made by": "a test"})
    with safe_open(path, framework="np") as archive:
        assert archive.metadata() == {"made by": "a test"}
        assert archive.get_tensor("x").tolist() == [1.5, 2.5]


def test_files_of_other_programs_are_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    values = np.array([1, -2], dtype=ml_dtypes.bfloat16)
    save_file({"x": values}, tmp_path / "x")
    assert safe_load(tmp_path / "x")["x"].tolist() == [1.0, -2.0]


def test_a_failed_save_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    safe_save({"x": Tensor([1.0])}, path)

    def fail(number: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        safe_save({"x": Tensor([2.0])}, path)
    assert safe_load(path)["x"].tolist() == [1.0]
    assert [found.name for found in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "runs" / "1.safetensors")
    for number in (1.0, 2.0):
        safe_save({"x": Tensor([number])}, link)
    assert link.is_symlink()
    assert safe_load(tmp_path / "runs" / "1.safetensors")["x"].tolist() == [2.0]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Replacing `/dev/null` by a file would take it from all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        safe_save({"x": Tensor([1.0])}, pipe)
        content = os.read(end, 1000)
    finally:
        os.close(end)
    assert pipe.is_fifo()
    (tmp_path / "file").write_bytes(content)
    assert safe_load(tmp_path / "file")["x"].tolist() == [1.0]


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OSError, match=r"Read-only file system; nothing was written: '.*x'$"):
        safe_save({"x": Tensor([1.0])}, tmp_path / "x")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The index of two files."""
    safe_save({"a": Tensor([1.0]), "unlisted": Tensor([0.0])}, tmp_path / "1.safetensors")
    safe_save({"b": Tensor([2.0])}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    places = {"a": "1.safetensors", "b": "2.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": places}))
    return index


def test_a_model_in_several_files(shards: Path) -> None:
    assert {name: x.tolist() for name, x in safe_load(shards).items()} == {"a": [1.0], "b": [2.0]}
    assert safe_load(shards, device="CPU")["b"].device == "CPU"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ('{"weight_map": {"a": ', StateError, "is not a whole index of files"),
        ('{"weight_map": {"a": "1", "a": "2"}}', StateError, "a name occurs twice"),
        ('{"weight_map": {"a": 3}}', StateError, "it has no weight_map"),
        ("{}", StateError, "it has no weight_map"),
        ('{"weight_map": {"a": "3.safetensors"}}', FileNotFoundError, "3.safetensors is not there"),
        ('{"weight_map": {"a": "../1.safetensors"}}', StateError, "is not in the same folder"),
        ('{"weight_map": {"c": "1.safetensors"}}', StateError, "lacks c, which .* says is in it"),
    ],
)
def test_an_index_that_does_not_fit_its_files(
    text: str, kind: type[Exception], message: str, shards: Path
) -> None:
    shards.write_text(text)
    with pytest.raises(kind, match=message):
        safe_load(shards)


def test_a_folder_as_hugging_face_has_it(shards: Path) -> None:
    (shards.parent / "config.json").write_text("{}")
    assert safe_load(shards.parent)["b"].tolist() == [2.0]
    model = {"a": Tensor([0.0]), "c": Tensor([0.0])}
    with pytest.raises(StateError, match="load_state_dict: missing c; unexpected b"):
        load_state_dict(model, safe_load(shards.parent))
    mismatch = load_state_dict(model, safe_load(shards.parent), strict=False)
    assert (mismatch.missing_keys, mismatch.unexpected_keys) == (["c"], ["b"])
    assert model["a"].tolist() == [1.0]


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    safe_save({"a": Tensor([1.0])}, tmp_path / "model.safetensors")
    torch_save({"a": Tensor([2.0])}, tmp_path / "pytorch_model.bin")
    assert safe_load(tmp_path)["a"].tolist() == [1.0]
    assert torch_load(tmp_path)["a"].tolist() == [2.0]


def test_files_of_other_kinds_are_named(shards: Path) -> None:
    folder = shards.parent
    shards.unlink()
    with pytest.raises(IsADirectoryError, match=r"is a folder; name the file in it, which has 1\."):
        safe_load(folder)
    np.savez(folder / "x.npz", x=np.zeros(2))
    with pytest.raises(StateError, match="it is a zip archive; torch_load and npz_load read these"):
        safe_load(folder / "x.npz")
    with pytest.raises(StateError, match="safe_load reads safetensors files"):
        torch_load(folder / "1.safetensors")


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "noise"])
def test_damaged_files_are_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safe_save({"x": Tensor([1.0, 2.0])}, path)
    whole = path.read_bytes()
    contents = {"empty": b"", "cut": whole[:-1], "header": whole[:12], "noise": b"\xff" * 64}
    path.write_bytes(contents[damage])
    with pytest.raises(StateError, match=r"x.safetensors is not a whole safetensors file: "):
        safe_load(path)


def test_a_dtype_that_ferrule_lacks_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2, np.complex64)}, tmp_path / "x")
    with pytest.raises(StateError, match="x has dtype C64; ferrule reads BOOL, I8, "):
        safe_load(tmp_path / "x")


def test_a_missing_file_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        safe_load(tmp_path / "nothing")


def header(text: str, size: int = 0) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + bytes(size)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (header("[]"), "its header is no JSON object"),
        (header("{"), "its header is no JSON"),
        (header('{"a": 1, "a": 1}'), "a name occurs twice"),
        (header('{"a": {"dtype": "F32"}}'), "a has no dtype, shape and data_offsets"),
        (
            header('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', 4),
            "the shape or the place of a is wrong",
        ),
        (
            header('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', 4),
            r"a takes 8 bytes, and its place is \[0, 4\]",
        ),
        (
            header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', 8),
            "a gap or an overlap at byte 0",
        ),
        (
            header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', 8),
            "the tensors take 4 bytes, and there are 8",
        ),
        ((1 << 62).to_bytes(8, "little"), "a header of 4611686018427387904 bytes does not fit"),
    ],
)
def test_headers_are_checked(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(StateError, match=text):
        safe_load(tmp_path / "x")


def test_the_name_of_the_metadata_is_taken(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="keeps the name __metadata__; rename that tensor"):
        safe_save({"__metadata__": Tensor([1.0])}, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def saved(kind: str, path: Path, tensors: dict[str, Tensor]) -> Any:
    """The tensors as they come back from a file of a kind."""
    if kind == "npz":
        npz_save(tensors, path)
        return npz_load(path)
    safe_save(tensors, path)
    return safe_load(path)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_tensor_is_read_when_it_is_realised(kind: str, tmp_path: Path) -> None:
    values = {name: Tensor(np.full(1000, i, np.float32)) for i, name in enumerate("abc")}
    loaded = saved(kind, tmp_path / "x", values)
    before = GlobalCounters.host_calls
    assert (loaded["b"] + 1).tolist() == [2.0] * 1000
    assert GlobalCounters.host_calls - before == 1


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_file_may_be_replaced_before_it_is_read(kind: str, tmp_path: Path) -> None:
    loaded = saved(kind, tmp_path / "x", {"a": Tensor([1.0, 2.0])})
    saved(kind, tmp_path / "x", {"a": Tensor([3.0, 4.0])})
    assert loaded["a"].tolist() == [1.0, 2.0]


def test_a_file_is_loaded_into_a_model_on_another_device(tmp_path: Path) -> None:
    loaded = saved("safetensors", tmp_path / "x", {"weight": Tensor([1.0, 2.0])})
    layer = Layer(0.0, 0.0)
    layer.weight = layer.weight.to("CPU").clone().realize()
    load_state_dict(layer, loaded)
    assert layer.weight.tolist() == [1.0, 2.0]


NUMPY_DTYPES = [dtype for dtype in FILE_DTYPES if not dtype.name.startswith(("bfloat", "float8"))]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=lambda dtype: dtype.name)
def test_npz_files_are_those_of_numpy(dtype: Any, tmp_path: Path) -> None:
    values = np.array([[0, 1, 2], [0, 0, 1]]).astype(dtype.np)
    tensors = {"a.b": Tensor(values), "file": Tensor(values[:0]), "t": Tensor(values).T}
    loaded = saved("npz", tmp_path / "x.npz", tensors)
    with np.load(tmp_path / "x.npz") as archive:
        for name, tensor in tensors.items():
            assert loaded[name].dtype is dtype
            np.testing.assert_array_equal(archive[name], tensor.numpy())
            np.testing.assert_array_equal(loaded[name].numpy(), tensor.numpy())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files_of_numpy_are_read(save: Any, tmp_path: Path) -> None:
    arrays = {
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(5, dtype=">i4"),
        "one": np.array(2.5),
    }
    save(tmp_path / "x.npz", **arrays)
    for name, tensor in npz_load(tmp_path / "x.npz").items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_npz_has_no_halves_of_machine_learning(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="x is bfloat16, which NumPy files cannot say; cast it"):
        npz_save({"x": Tensor([1.0], dtype=dtypes.bfloat16)}, tmp_path / "x.npz")


@pytest.mark.parametrize("array", [np.array([None]), np.array(["text"]), np.zeros(1, complex)])
def test_npz_files_of_other_types_are_refused(array: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=array)
    with pytest.raises(StateError, match=r"x.npy has dtype .*, which ferrule lacks"):
        npz_load(tmp_path / "x.npz")


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_damage_in_an_npz_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    npz_save({"x": Tensor(np.full(10_000, 1.5, np.float32))}, path)
    whole = path.read_bytes()
    place = whole.index(np.full(4, 1.5, np.float32).tobytes())
    path.write_bytes(flipped(whole, place + 30_000))
    with pytest.raises(StateError, match=r"x.npy is damaged: its checksum differs"):
        npz_load(path)["x"].numpy()
    path.write_bytes(flipped(whole, place + 40)[: place + 400] + whole[place + 400 :])
    with pytest.raises(StateError, match=r"x.npy is damaged"):
        npz_load(path)["x"].numpy()
    for content in (b"", whole[:-5], whole[: len(whole) // 2], b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(StateError, match=r"is not a whole .npz file"):
            npz_load(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_damage_in_an_npz_file_is_an_error_of_the_state(save: Any, tmp_path: Path) -> None:
    """Or changes nothing that is read: never what `zipfile` and `zlib` say of it."""
    path = tmp_path / "x.npz"
    arrays = {"x": np.arange(8, dtype=np.float32), "y": np.array(7)}
    save(path, **arrays)
    whole = path.read_bytes()
    found = 0
    for place in range(len(whole)):
        bit = 1 << (place * 5 + place // 8) % 8
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            read = {name: tensor.numpy() for name, tensor in npz_load(path).items()}
        except StateError:
            found += 1
            continue
        assert read.keys() == arrays.keys(), f"byte {place}, bit {bit}"
        for name, array in read.items():
            np.testing.assert_array_equal(array, arrays[name])
    assert found > len(whole) // 2


# PyTorch's checkpoints, made by hand


def pickled(*names: str, body: bytes) -> bytes:
    """A pickle that has the named functions on its stack, and then `body`."""
    parts = [name.rpartition(".") for name in names]
    text = "".join(f"c{module}\n{name}\n" for module, _, name in parts)
    return b"\x80\x02" + text.encode() + body + b"."


def checkpoint(path: Path, data: bytes, **storages: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", data)
        archive.writestr("x/byteorder", sys.byteorder)
        for key, content in storages.items():
            archive.writestr(f"x/data/{key}", content)


def strided(offset: int, shape: str, strides: str) -> bytes:
    """A float32 tensor on the storage `s` of four elements, in the words of protocol 0."""
    storage = b"(Vstorage\nctorch\nFloatStorage\nVs\nVcpu\nI4\ntQ"
    rest = f"I{offset}\n({shape}t({strides}tI00\nNt".encode()
    return b"(" + storage + rest + b"R"


FOUR = np.arange(4, dtype=np.float32).tobytes()


def test_a_strided_tensor_of_a_checkpoint(tmp_path: Path) -> None:
    body = strided(1, "I2\nI2\n", "I1\nI1\n")
    data = pickled("torch._utils._rebuild_tensor_v2", body=body)
    checkpoint(tmp_path / "x.pt", data, s=FOUR)
    assert torch_load(tmp_path / "x.pt").tolist() == [[1.0, 2.0], [2.0, 3.0]]


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    file = tmp_path / "made"
    body = f"(Vtouch {file}\ntR".encode()
    checkpoint(tmp_path / "x.pt", pickled("os.system", body=body))
    with pytest.raises(StateError, match=r"x.pt holds <unread os.system> and no tensors by name"):
        torch_load(tmp_path / "x.pt")
    # In a list, with more said about it than any object takes: it is passed over.
    body = b"](" + f"cos\nsystem\n(Vtouch {file}\ntR(V__class__\nI1\ndb".encode() + b"I3\ne"
    checkpoint(tmp_path / "y.pt", pickled(body=body))
    unread, three = torch_load(tmp_path / "y.pt")
    assert (repr(unread), three) == ("<unread os.system>", 3)
    assert not file.exists()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (strided(1, "I4\n", "I1\n"), "a tensor reaches beyond x/data/s"),
        (strided(0, "I2\n", "I-1\n"), r"a tensor has shape \(2,\) and strides \(-1,\)"),
        (strided(0, "I2\n", "I1\n").replace(b"I4", b"I5"), "x/data/s has 16 bytes, not 20"),
        (strided(0, "I2\n", "I1\n").replace(b"Vs\n", b"Vt\n"), "there is no x/data/t"),
        (b"(tR", "its pickle is damaged"),
        (b"garbage", "its pickle is damaged"),
    ],
)
def test_damaged_checkpoints_are_refused(body: bytes, text: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "x.pt", pickled("torch._utils._rebuild_tensor_v2", body=body), s=FOUR)
    with pytest.raises(StateError, match=text):
        torch_load(tmp_path / "x.pt")


def test_damaged_storages_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    data = pickled("torch._utils._rebuild_tensor_v2", body=strided(0, "I4\n", "I1\n"))
    checkpoint(path, data, s=FOUR)
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, whole.index(FOUR) + 5))
    with pytest.raises(StateError, match="x/data/s is damaged: its checksum differs"):
        torch_load(path).numpy()
    path.write_bytes(whole[:-5])
    with pytest.raises(StateError, match="is not a whole PyTorch checkpoint"):
        torch_load(path)


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(StateError, match=r"bare pickle, which PyTorch does not write; torch.save"):
        torch_load(path)
    path.write_bytes(b"text")
    with pytest.raises(StateError, match="is no PyTorch checkpoint: it is no zip archive"):
        torch_load(path)
    np.savez(path.with_suffix(".npz"), x=np.zeros(2))
    with pytest.raises(StateError, match=r"there is no data.pkl in it"):
        torch_load(path.with_suffix(".npz"))
    with pytest.raises(FileNotFoundError):
        torch_load(tmp_path / "nothing")


def test_a_model_as_a_function_of_its_tensors() -> None:
    class Tied:
        def __init__(self) -> None:
            self.first = nn.Linear(3, 3, bias=False)
            self.layers = [self.first, {"last": nn.Linear(3, 2)}]

        def __call__(self, x: Tensor, scale: float = 1.0) -> Tensor:
            for layer in (self.first, self.layers[0], self.layers[1]["last"]):
                x = layer(x)
            return x * scale

    model = Tied()
    state = get_state_dict(model)
    x = Tensor.ones(4, 3)
    before = model(x)
    zeros = {name: Tensor.zeros_like(tensor) for name, tensor in state.items()}
    assert functional_call(model, zeros, (x,), {"scale": 2.0}).abs().sum().item() == 0
    tied = functional_call(model, {"first.weight": zeros["first.weight"]}, x)
    np.testing.assert_array_equal(
        tied.numpy(), np.tile(state["layers.1.last.bias"].numpy(), (4, 1))
    )
    after = get_state_dict(model)
    assert all(after[name] is tensor for name, tensor in state.items())
    np.testing.assert_array_equal(model(x).numpy(), before.numpy())


def test_gradients_of_single_examples_by_a_models_tensors() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    state = {name: tensor.detach() for name, tensor in get_state_dict(model).items()}
    examples = Tensor.rand(5, 3)

    def loss(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, state, x).square().sum()

    slopes = vmap(grad(loss), (None, 0))(state, examples)
    for row in range(5):
        for name, slope in grad(loss)(state, examples[row]).items():
            np.testing.assert_allclose(slopes[name][row].numpy(), slope.numpy(), atol=1e-6)


def test_what_a_model_cannot_be_called_with() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(StateError, match=r"functional_call: unexpected wait"):
        functional_call(model, {"wait": Tensor.ones(2, 3)}, Tensor.ones(3))
    with pytest.raises(StateError, match=r"weight has shape \(3, 2\) where the model has \(2, 3\)"):
        functional_call(model, {"weight": Tensor.ones(3, 2)}, Tensor.ones(3))
    pair = lambda: (Tensor.ones(2),)  # noqa: E731
    pair.parts = pair()  # type: ignore[attr-defined]
    with pytest.raises(StateError, match=r"a tensor of shape \(2,\) is in a tuple"):
        functional_call(pair, {"parts.0": Tensor.zeros(2)})
