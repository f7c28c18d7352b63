import enum
import logging
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pydantic import BaseModel

from trieye.checkpoints.directory import load_state, save_state
from trieye.exceptions import SerializationError
from trieye.snapshot import objects
from trieye.snapshot.encode import MAX_DEPTH, EncodedState, Encoder, decode, encode


def through_disk(state):
    with tempfile.TemporaryDirectory() as directory:
        encoded = load_state(save_state(Path(directory) / "saved", encode(state)))
    return decode(encoded)


def is_plain(state):
    return not encode(state).objects


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**14000), max_value=2**14000)  # Hypothesis cannot print integers of 4300 digits
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.text(st.characters(categories=["Cs", "L"]), max_size=4)
    | st.binary(max_size=600)
)
number_dtypes = (
    npst.boolean_dtypes()
    | npst.integer_dtypes(endianness="?")
    | npst.unsigned_integer_dtypes(endianness="?")
    | npst.floating_dtypes(endianness="?")
    | npst.complex_number_dtypes(endianness="?")
    | npst.datetime64_dtypes(endianness="?")
    | npst.timedelta64_dtypes(endianness="?")
    | npst.byte_string_dtypes(endianness="?")
    | npst.unicode_string_dtypes(endianness="?")
)
dtypes = number_dtypes | npst.array_dtypes(number_dtypes, allow_subarrays=True)
numpy_arrays = dtypes.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
numpy_scalars = number_dtypes.flatmap(lambda dtype: npst.arrays(dtype, ()).map(lambda array: array[()]))
hashables = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=300),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
states = st.recursive(
    scalars | numpy_arrays | numpy_scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.just("$"), inner, max_size=4)
        | st.lists(st.tuples(hashables, inner), max_size=3).map(OrderedDict)
        | st.sets(hashables, max_size=3)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=5))
    ),
    max_leaves=12,
)


@given(states)
def test_plain_data_and_arrays_round_trip_exactly_without_pickle(assert_same, state):
    assert is_plain(state)
    assert_same(through_disk(state), state)


def test_keys_with_equal_beginnings_get_names_in_linear_time():
    class CountedNames(dict):
        num_lookups = 0

        def __contains__(self, name):
            self.num_lookups += 1
            return super().__contains__(name)

    encoder = Encoder()
    encoder.arrays = names = CountedNames()
    encoder.node({("a" * 60, index): np.zeros(1) for index in range(50)}, "table", 0)
    assert len(names) == 50
    assert names.num_lookups <= 150


def test_integers_above_the_digit_limit_of_python_round_trip(assert_same):
    assert_same(through_disk([2**20000, -(2**20000) + 1]), [2**20000, -(2**20000) + 1])


def test_nan_and_mixed_type_keys_keep_type_and_order(assert_same):
    state = {float("nan"): 1, -0.0: 2, (None, float("inf")): 3, True: 4, "1": 5, 2**70: 6, "$": 7, None: 8, b"k": 9}
    assert_same(through_disk(state), state)


@pytest.mark.long
@given(numpy_arrays, st.booleans(), st.integers(1, 3))
def test_non_contiguous_arrays_round_trip_exactly(assert_same, array, transposed, stride):
    viewed = array.T if transposed else array
    viewed = viewed[::-stride] if viewed.ndim else viewed
    assert_same(through_disk({"a": viewed}), {"a": np.array(viewed, order="C")})


TENSOR_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.complex32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")  # complex32 triggers it
@pytest.mark.parametrize("dtype", TENSOR_DTYPES, ids=str)
def test_tensors_of_every_dtype_and_shape_round_trip_exactly_without_pickle(assert_same, dtype):
    state = []
    for shape in [(), (0,), (3,), (2, 0, 3), (4, 3)]:
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = torch.randint(0, 2, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        state.append(raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype))
    state.append(state[-1].T)
    assert is_plain(state)
    assert_same(through_disk(state), state)


def test_conjugated_and_strided_tensors_round_trip_by_value(assert_same):
    base = torch.view_as_complex(torch.arange(12.0).reshape(6, 2))
    state = [base.conj(), base.conj().imag, torch.arange(10)[::3], torch.ones(1).expand(4)]
    assert is_plain(state)
    assert_same(through_disk(state), state)


def test_modules_and_optimizers_are_saved_as_state_dicts_that_load_strictly():
    torch.manual_seed(3)

    def make(rate):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        return model, torch.optim.Adam(model.parameters(), lr=rate)

    model, optimizer = make(0.1)
    for _ in range(3):
        model(torch.randn(8, 3)).sum().backward()
        optimizer.step()
    state = {"model": model, "optimizer": optimizer}
    assert is_plain(state)
    loaded = through_disk(state)
    assert loaded["model"]._metadata == model.state_dict()._metadata
    twin, twin_optimizer = make(0.7)
    twin.load_state_dict(loaded["model"], strict=True)
    twin_optimizer.load_state_dict(loaded["optimizer"])
    for one, other in ((model, optimizer), (twin, twin_optimizer)):
        torch.manual_seed(4)
        other.zero_grad()
        one(torch.randn(8, 3)).sum().backward()
        other.step()
    pairs = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


class Color(enum.Enum):
    RED = 1


class Transition(NamedTuple):
    obs: Any
    action: int


class Shape(BaseModel):
    width: int


@dataclass
class Note:
    text: str
    weights: Any = field(default=None)


def test_tensors_of_pickled_objects_are_stored_outside_the_pickle(assert_same):
    state = {"color": Color.RED, "note": Note("a", torch.arange(1000.0)), "shape": Shape(width=2), "path": Path("x")}
    encoded = encode(state)
    assert set(encoded.objects) == {"color", "note", "shape", "path"}
    assert len(encoded.objects["note"]) < 1000
    assert_same(through_disk(state), state)


def test_named_tuples_keep_their_type_and_pickle_only_their_class(assert_same):
    state = [Transition(np.arange(3.0) + index, index) for index in range(50)]
    encoded = encode(state)
    assert len(encoded.objects) == 1
    loaded = through_disk(state)
    assert isinstance(loaded[7], Transition)
    assert_same(loaded[7].obs, state[7].obs)


def set_main_classes(monkeypatch):
    """Define an enum, a named tuple and a dataclass in a class in the main module, and return them."""
    mode = enum.Enum("Mode", ["A", "B"], module="__main__")
    pair = namedtuple("Pair", ["x", "y"], module="__main__")  # noqa: PYI024 - a NamedTuple does not set the module
    note = make_dataclass("Note", ["text"], namespace={"__module__": "__main__", "__qualname__": "Agent.Note"})
    for name, value in {"Mode": mode, "Pair": pair, "Agent": type("Agent", (), {"Note": note})}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    return mode, pair, note


def test_classes_of_the_program_are_found_by_name(monkeypatch):
    mode, pair, note = set_main_classes(monkeypatch)
    encoded = encode({"modes": {mode.B: 1}, "pair": pair(1, 2), "note": note("a"), "class": mode})
    mode, pair, note = set_main_classes(monkeypatch)
    state = decode(encoded)
    assert state == {"modes": {mode.B: 1}, "pair": pair(1, 2), "note": note("a"), "class": mode}
    assert type(state["pair"]) is pair


def test_classes_that_the_program_lacks_are_restored_as_saved(monkeypatch):
    mode, pair, note = set_main_classes(monkeypatch)
    encoded = encode({"mode": mode.B, "pair": pair(1, 2), "note": note("a")})
    for name, value in {"Mode": type("Mode", (), {}), "Pair": tuple, "Agent": None}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value)
    assert [type(value) for value in decode(encoded).values()] == [mode, pair, note]


def test_a_module_inside_a_pickled_object_keeps_tied_parameters():
    layer = torch.nn.Linear(2, 2)
    layer.register_parameter("again", layer.weight)
    loaded = through_disk({"note": Note("m", layer)})["note"].weights
    assert isinstance(loaded.weight, torch.nn.Parameter)
    assert loaded.weight is loaded.again
    assert torch.equal(loaded.weight, layer.weight)


def test_torch_sizes_dtypes_and_devices_need_no_pickle(assert_same):
    state = [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1")]
    assert is_plain(state)
    assert_same(through_disk(state), state)


def test_the_first_pickled_object_is_reported_once_with_its_path(caplog, monkeypatch):
    monkeypatch.setattr(objects, "_warned", False)
    with caplog.at_level(logging.WARNING):
        encode({"deep": [{"note": Note("a")}]})
        encode({"other": Note("b")})
    assert len(caplog.records) == 1
    assert "'deep.0.note' is a " in caplog.text
    assert "Note" in caplog.text


def test_an_object_that_cannot_be_pickled_is_named():
    with pytest.raises(SerializationError, match=r"^'a\.1' is a _thread.lock, which cannot be pickled"):
        encode({"a": [0, threading.Lock()]})
    with pytest.raises(SerializationError, match=r"^'agent\.x' is a _thread.lock"):  # as Run.save names it
        encode({"objects": {"agent": {"x": threading.Lock()}}})


def test_a_state_that_contains_itself_is_rejected():
    state: dict[str, Any] = {}
    state["self"] = [state]
    with pytest.raises(SerializationError, match="does it contain itself"):
        encode(state)


def test_the_deepest_accepted_state_decodes_on_a_deep_call_stack(assert_same):
    state: Any = 1
    for _ in range(MAX_DEPTH + 1):
        state = (state,) if isinstance(state, dict) else {"k": state}

    def deep(levels):
        return through_disk(state) if levels == 0 else deep(levels - 1)

    assert_same(deep(150), state)


def test_later_changes_of_the_state_do_not_alter_the_snapshot():
    array, tensor, raw = np.zeros(1000), torch.zeros(1000), bytearray(1000)
    encoded = encode({"a": array, "t": tensor, "b": raw, "v": array[::2]})
    array += 1
    tensor += 1
    raw[:] = b"1" * 1000
    assert not any(np.any(np.asarray(value)) for value in decode(encoded).values())


def test_encoding_without_copy_shares_the_memory_of_the_state():
    array, tensor = np.zeros(1000), torch.zeros(1000)
    encoded = encode({"a": array, "t": tensor}, copy=False)
    assert np.shares_memory(encoded.arrays["a"], array)
    assert np.shares_memory(encoded.arrays["t"], tensor.numpy())


def test_two_decodings_of_a_snapshot_share_no_memory():
    encoded = encode({"a": np.zeros(3), "t": torch.zeros(3)})
    first, second = decode(encoded), decode(encoded)
    first["a"] += 1
    first["t"] += 1
    assert not second["a"].any()
    assert not second["t"].any()


def test_decoding_copies_read_only_memory_into_writable_tensors():
    encoded = encode({"t": torch.zeros(3)})
    encoded.arrays["t"].flags.writeable = False
    decode(encoded, copy=False)["t"].add_(1)


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "unknown"},
        {"$": "ndarray"},
        {"$": "ndarray", "array": "missing"},
        {"$": "ndarray", "array": "a", "descr": "|O", "shape": [1]},
        {"$": "ndarray", "array": "a", "descr": "<f8", "shape": [10**9]},
        {"$": "ndarray", "array": "a", "descr": [["f", "|O"]], "shape": [1]},
        {"$": "torch.dtype", "name": "load"},
        {"$": "object", "object": "x"},
        {"$": "namedtuple", "class": "x", "items": []},
        {"$": "tensor", "array": "a", "dtype": "save"},
        {"$": "tensor", "array": "a", "dtype": "complex64", "shape": [7]},
        {"$": "scalar", "descr": "|O", "hex": "00" * 8},
        {"$": ["list"]},
        {"$": "set", "items": [[1]]},
    ],
)
def test_an_inconsistent_tree_raises_a_serialization_error(tree):
    with pytest.raises(SerializationError):
        decode(EncodedState(tree, {"a": np.zeros(8, np.uint8)}))


@pytest.mark.long
def test_snapshots_of_tensors_are_written_and_read_without_torch(tmp_path):
    import pickle

    encoded = encode({"w": torch.arange(4.0).bfloat16()})
    (tmp_path / "sent").write_bytes(pickle.dumps(encoded, protocol=5))
    program = (
        "import pickle, sys, pathlib\n"
        "from trieye.checkpoints.directory import load_state, save_state\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "save_state(here / 'saved', pickle.loads((here / 'sent').read_bytes()))\n"
        "load_state(here / 'saved')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert torch.equal(decode(load_state(tmp_path / "saved"))["w"], torch.arange(4.0).bfloat16())
