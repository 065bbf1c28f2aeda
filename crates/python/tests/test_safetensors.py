"""Checkpoints: the same tensors as the reference implementation, headers as strict as its own or stricter, and
one allocation."""

import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bifolio
import pytest
from bifolio.safetensors import SafetensorError, load_file, safe_open

from conftest import need_gpu, need_module

numpy = need_module("numpy")
reference = need_module("safetensors")
reference_numpy = need_module("safetensors.numpy")


def raw(header: Any, data: bytes = b"") -> bytes:
    """A file of a header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def target(folder: Path) -> Iterator[Path]:
    path = folder / "model.safetensors"
    yield path
    path.unlink(missing_ok=True)


PLAIN = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "complex64", "float64",
         "int64", "uint64"]  # fmt: skip


def tensors_of_all_types() -> dict[str, Any]:
    random = numpy.random.default_rng(5)
    tensors = {
        dtype: random.integers(0, 2 if dtype == "bool" else 100, size=(3, 5, 2)).astype(dtype) for dtype in PLAIN
    }
    empty = {"none": numpy.zeros((0, 4), "float32"), "one": numpy.array(2.5), "long": random.random(100_001)}
    return tensors | empty


def test_tensors_are_those_of_the_reference(target: Path) -> None:
    tensors = tensors_of_all_types()
    reference_numpy.save_file(tensors, target, {"key": "text"})
    loaded = load_file(target, "host")
    assert loaded.keys() == tensors.keys()
    for name, expected in reference_numpy.load_file(target).items():
        assert loaded[name].dtype == expected.dtype
        assert loaded[name].shape == expected.shape
        numpy.testing.assert_array_equal(loaded[name], expected)
        assert loaded[name].ctypes.data % loaded[name].itemsize == 0
        loaded[name].flags.writeable = True


def test_tensors_are_views_of_one_allocation(target: Path) -> None:
    reference_numpy.save_file(tensors_of_all_types(), target)
    loaded = load_file(target, framework="np")

    def owner(array: Any) -> int:
        while array.base is not None:
            array = array.base
        return id(array)

    assert len({owner(tensor) for tensor in loaded.values() if tensor.size}) == 1


def test_tensors_are_cut_as_the_reference_cuts_them(target: Path) -> None:
    random = numpy.random.default_rng(6)
    tensors = {"a": random.random((7, 40, 9)), "wide": random.random((6, 4000)), "flat": random.random(50)}
    reference_numpy.save_file(tensors, target, {"format": "np"})
    with safe_open(target, device="cpu") as ours, reference.safe_open(target, "np") as theirs:
        assert sorted(ours.keys()) == sorted(theirs.keys())
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata() == {"format": "np"}
        for name, tensor in tensors.items():
            numpy.testing.assert_array_equal(ours.get_tensor(name), tensor)
            assert ours.get_slice(name).get_shape() == theirs.get_slice(name).get_shape()
            assert ours.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
        s = slice
        for name, index in [
            ("a", s(2, 5)), ("a", (s(None), s(3, 30))), ("a", (s(1, 6), s(2, 39), s(4, 8))), ("a", 3),
            ("a", (s(None), 5)), ("a", (s(None), s(None), 8)), ("a", (2, 3, 4)), ("wide", (s(None), s(100, 3000))),
            ("wide", (s(2, 4), s(-3000, None))), ("flat", s(10, 20)), ("flat", s(30, 20)), ("a", s(0, 0)),
        ]:  # fmt: skip
            cut = ours.get_slice(name)[index]
            numpy.testing.assert_array_equal(cut, tensors[name][index])
            assert cut.shape == tensors[name][index].shape
            assert cut.flags.c_contiguous
        # These the reference does not know.
        for name, index in [("a", (..., 3)), ("a", (-1, ..., s(1, 3))), ("a", ...), ("flat", -1)]:
            numpy.testing.assert_array_equal(ours.get_slice(name)[index], tensors[name][index])


def test_narrow_cuts_of_many_rows_list_no_runs(target: Path) -> None:
    # Every run was listed, as a tuple, before it was decided that there were too many of them.
    rows = numpy.arange(300_000 * 4, dtype="float32").reshape(300_000, 4)
    reference_numpy.save_file({"rows": rows}, target)
    with safe_open(target, "np") as file:
        part = file.get_slice("rows")
        part[:, 1:3]
        tracemalloc.start()
        try:
            cut = part[:, 1:3]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    numpy.testing.assert_array_equal(cut, rows[:, 1:3])
    # The rows, and what is cut of them.
    assert peak < rows.nbytes + cut.nbytes + 100_000


@pytest.mark.parametrize(
    ("framework", "shape", "words"),
    [
        ("np", [0, 2**63, 2], r"the shape \[0, 9223372036854775808, 2\]"),
        ("np", [0] * 65, "65 dimensions"),
        ("np", [1] * 65, "65 dimensions"),
        # PyTorch takes any number of dimensions.
        ("pt", [0, 2**63, 2], r"the shape \[0, 9223372036854775808, 2\]"),
    ],
)
def test_shapes_that_the_framework_does_not_take_are_told(
    target: Path, framework: str, shape: list[int], words: str
) -> None:
    if framework == "pt":
        need_module("torch")
    size = 0 if 0 in shape else 1
    target.write_bytes(raw({"odd": entry("U8", shape, 0, size)}, bytes(size)))
    with pytest.raises(SafetensorError, match=f"tensor 'odd' has {words}, which .* does not support: "):
        load_file(target, "cpu", framework)
    with safe_open(target, framework, "cpu") as file, pytest.raises(SafetensorError, match=words):
        file.get_tensor("odd")


def test_wrong_cuts_are_refused(target: Path) -> None:
    reference_numpy.save_file({"a": numpy.zeros((4, 4))}, target)
    with safe_open(target, "np") as file:
        part = file.get_slice("a")
        for index in (4, -5, (0, 0, 0), (..., ...)):
            with pytest.raises(IndexError):
                part[index]
        for index in ([0, 1], None, True, "a"):
            with pytest.raises(TypeError, match="invalid index"):
                part[index]
        with pytest.raises(ValueError, match="step 1"):
            part[::2]
        with pytest.raises(SafetensorError, match="no tensor 'b'"):
            file.get_tensor("b")
    with pytest.raises(ValueError, match="closed"):
        file.get_tensor("a")


def test_types_that_numpy_lacks_are_loaded_or_refused_with_the_reason(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write_bytes(raw({"b": entry("BF16", [2], 0, 4)}, struct.pack("<HH", 0x3F80, 0xC000)))
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(SafetensorError, match="'b' has dtype BF16, which NumPy does not support: install ml_dtypes"):
        load_file(target, "host")
    monkeypatch.undo()
    need_module("ml_dtypes")
    assert load_file(target, "host")["b"].astype("float32").tolist() == [1.0, -2.0]
    for dtype in ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        target.write_bytes(raw({"b": entry(dtype, [3], 0, 3)}, b"\x38\x40\x48"))
        assert load_file(target, "host")["b"].tobytes() == b"\x38\x40\x48"
    for dtype, count in (("F4", 2), ("F6_E2M3", 4), ("F6_E3M2", 4)):
        data = bytes(count * {"F4": 4}.get(dtype, 6) // 8)
        target.write_bytes(raw({"b": entry(dtype, [count], 0, len(data))}, data))
        with pytest.raises(SafetensorError, match=f"'b' has dtype {dtype}, which NumPy does not support"):
            load_file(target, "host")


def test_misaligned_tensors_are_copied_to_where_they_are_aligned(target: Path) -> None:
    header = {"a": entry("U8", [3], 0, 3), "b": entry("F32", [2, 2], 3, 19), "c": entry("F64", [1], 19, 27)}
    data = b"xyz" + struct.pack("<4f", 1, 2, 3, 4) + struct.pack("<d", 5)
    target.write_bytes(raw(header, data))
    loaded = load_file(target, "host")
    assert loaded["a"].tobytes() == b"xyz"
    assert loaded["b"].tolist() == [[1, 2], [3, 4]]
    assert loaded["c"].tolist() == [5]
    assert all(tensor.flags.aligned for tensor in loaded.values())


def test_files_without_tensors_are_loaded(target: Path) -> None:
    for header in ({}, {"__metadata__": {"a": "b"}}, {"__metadata__": None}):
        target.write_bytes(raw(header))
        assert load_file(target, "host") == {}
        with safe_open(target, "np") as file:
            assert file.keys() == []
            assert file.metadata() == header.get("__metadata__")


ONE = entry("F32", [1], 0, 4)
HOSTILE = {
    "nothing": b"",
    "seven bytes": b"\x01" * 7,
    "a length beyond the file": struct.pack("<Q", 100) + b"{}",
    "a length beyond all files": b"\xff" * 8 + b"{}",
    "a length of 100 MB and a byte": struct.pack("<Q", 100_000_001) + b"{}",
    "no object": raw(b"[]"),
    "a space first": raw(b" {}"),
    "no JSON": raw(b"{"),
    "more than JSON": raw(b"{}}"),
    "no UTF-8": raw(b'{"\xff": 1}'),
    "half a surrogate": raw(b'{"\\ud800": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "a hole": raw({"a": ONE, "b": entry("F32", [1], 8, 12)}, bytes(12)),
    "an overlap": raw({"a": ONE, "b": entry("F32", [1], 2, 6)}, bytes(6)),
    "a hole at the start": raw({"a": entry("F32", [1], 4, 8)}, bytes(8)),
    "offsets backwards": raw({"a": entry("F32", [1], 4, 0)}, bytes(4)),
    "bytes behind": raw({"a": ONE}, bytes(5)),
    "bytes missing": raw({"a": ONE}, bytes(3)),
    "too small for its shape": raw({"a": entry("F32", [2], 0, 4)}, bytes(4)),
    "a shape that overflows": raw({"a": entry("U8", [2**32, 2**32], 0, 0)}),
    "bytes that overflow": raw({"a": entry("F64", [2**61], 0, 0)}),
    "a negative side": raw({"a": entry("F32", [-1, -1], 0, 4)}, bytes(4)),
    "a broken side": raw({"a": entry("F32", [1.5], 0, 4)}, bytes(4)),  # type: ignore[list-item]
    "a huge side": raw(b'{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}}'),
    "an unknown type": raw({"a": entry("F33", [1], 0, 4)}, bytes(4)),
    "half a byte": raw({"a": entry("F4", [3], 0, 1)}, bytes(1)),
    "three offsets": raw({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0, 0]}}),
    "no shape": raw({"a": {"dtype": "U8", "data_offsets": [0, 0]}}),
    "metadata of numbers": raw({"__metadata__": {"a": 1}}),
    "metadata of nothing": raw({"__metadata__": {"a": None}}),
    "metadata as a list": raw({"__metadata__": ["a"]}),
    "deep nesting": raw(b'{"a":' * 10_000),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers_are_refused_by_both(target: Path, what: str) -> None:
    target.write_bytes(HOSTILE[what])
    with pytest.raises(SafetensorError) as refusal:
        load_file(target, "host")
    assert str(target) in str(refusal.value)
    with pytest.raises(SafetensorError):
        safe_open(target, "np")
    if what != "a space first":
        # The reference has a note to refuse that one later.
        with pytest.raises(Exception, match=r".+"), reference.safe_open(target, "np"):
            pass


def test_keys_that_are_there_twice_are_refused(target: Path) -> None:
    twice = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    target.write_bytes(raw(twice, b"x"))
    with pytest.raises(SafetensorError, match='duplicate key "a"'):
        load_file(target, "host")


def test_a_header_of_100_megabytes_is_read(target: Path) -> None:
    name = "x" * 1000
    header = {f"{name}{number}": entry("U8", [1], number, number + 1) for number in range(20_000)}
    text = json.dumps(header).encode()
    target.write_bytes(raw(text + b" " * (100_000_000 - len(text)), bytes(20_000)))
    with safe_open(target, "np") as file:
        assert len(file.keys()) == 20_000


def test_files_that_are_not_there_are_the_systems_errors(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_file(folder / "missing.safetensors", "host")
    with pytest.raises(FileNotFoundError):
        load_file(folder, "host")


def test_wrong_frameworks_and_devices_are_refused(target: Path) -> None:
    reference_numpy.save_file({"a": numpy.zeros(1)}, target)
    for options, words in [
        ({"framework": "jax"}, "unknown framework"),
        ({"device": "tpu:0"}, "unknown device"),
        ({"device": "cuda:x"}, "unknown device"),
        ({"device": "cuda:0", "framework": "np"}, "no arrays on cuda:0"),
        ({"device": "cpu", "framework": "cupy"}, "no arrays in host memory"),
    ]:
        with pytest.raises(ValueError, match=words):
            load_file(target, **options)  # type: ignore[arg-type]


@pytest.fixture
def sharded(folder: Path) -> Iterator[Path]:
    """A checkpoint of three shards, one of which has a tensor that the index leaves out."""
    import shutil

    root = folder / "sharded"
    root.mkdir()
    weight_map = {}
    for number in range(3):
        name = f"model-{number}.safetensors"
        tensors = {f"t{number}.{i}": numpy.full((number + 1, 1000), number * 10 + i, "float32") for i in range(4)}
        weight_map |= dict.fromkeys(tensors, name)
        reference_numpy.save_file(tensors | {"unlisted": numpy.zeros(3)}, root / name, {f"k{number}": "v"})
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    yield root
    shutil.rmtree(root)


def test_shards_are_loaded_by_their_index_or_folder(sharded: Path) -> None:
    for path in (sharded, sharded / "model.safetensors.index.json"):
        loaded = load_file(path, "host")
        assert len(loaded) == 12
        for name, tensor in loaded.items():
            number, i = map(int, name[1:].split("."))
            assert tensor.shape == (number + 1, 1000)
            assert (tensor == number * 10 + i).all()
    with safe_open(sharded, "np") as file:
        assert len(file.keys()) == len(file.offset_keys()) == 12
        assert file.metadata() == {"k0": "v", "k1": "v", "k2": "v"}
        assert (file.get_slice("t2.1")[1:, 5:10] == 21).all()


def test_indexes_that_lie_are_refused(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    for text, words in [
        ("{", "not a checkpoint index"),
        ("[]", "not a checkpoint index"),
        ('{"weight_map": 7}', "not a checkpoint index"),
        ('{"weight_map": {"a": "../model-0.safetensors"}}', "is not in the folder of the index"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "is not in the folder of the index"),
        ('{"weight_map": {"a": ""}}', "is not in the folder of the index"),
        ('{"weight_map": {"a": "\\ud800"}}', r"shard '\\ud800' is not a valid file name"),
        ('{"weight_map": {"a": "b\\u0000c"}}', r"shard 'b\\x00c' is not a valid"),
        ('{"weight_map": ' + "[" * 200_000 + "]" * 200_000 + "}", "not a checkpoint index"),
        ('{"weight_map": {"a": "model-0.safetensors"}}', "'a' is missing from model-0.safetensors"),
    ]:
        index.write_text(text)
        with pytest.raises(SafetensorError, match=words):
            load_file(sharded, "host")
    index.write_text('{"weight_map": {"a": "missing.safetensors"}}')
    with pytest.raises(FileNotFoundError):
        load_file(sharded, "host")


def test_a_shard_that_is_cut_short_meanwhile_is_an_error(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the header and the data, another process may cut the file."""
    from bifolio import safetensors

    real = safetensors._read_all

    def cut_first(shards: list[Any], starts: dict[str, int], memory: Any) -> None:
        Path(shards[1].path).open("r+b").truncate(shards[1].data_start + 100)
        real(shards, starts, memory)

    monkeypatch.setattr(safetensors, "_read_all", cut_first)
    with pytest.raises(SafetensorError, match="truncated while it was read: got 100 of"):
        load_file(sharded, "host")


def test_headers_pass_or_fail_as_with_the_reference(target: Path) -> None:
    """Anything that we take, the reference takes with the same content; anything that it refuses, we refuse."""
    hypothesis = need_module("hypothesis")
    st = hypothesis.strategies
    dtype = st.sampled_from(["U8", "F16", "F32", "C64", "F4", "F6_E2M3", "F8_E8M0", "BOOL", "F33", "f32", ""])
    number = st.one_of(st.integers(0, 9), st.sampled_from([-1, 2**31, 2**63, 2**64, 0.0, None, "1", True]))
    info = st.fixed_dictionaries(
        {},
        optional={
            "dtype": dtype,
            "shape": st.one_of(st.lists(number, max_size=3), number),
            "data_offsets": st.lists(number, max_size=3),
            "other": number,
        },
    )
    name = st.sampled_from(["a", "b", "", "__metadata__", "é", "\u0000"])
    wild = st.dictionaries(name, st.one_of(info, st.dictionaries(st.text(max_size=2), number), number), max_size=4)

    @st.composite
    def nearly(draw: Any) -> dict[str, Any]:
        at, header = 0, {}
        for key in draw(st.lists(name.filter(lambda name: name != "__metadata__"), unique=True, max_size=4)):
            kind, bits = draw(st.sampled_from([("U8", 8), ("F16", 16), ("F32", 32), ("F4", 4)]))
            shape = draw(st.lists(st.integers(0, 4), max_size=3))
            count = bits
            for side in shape:
                count *= side
            end = at + count // 8 + draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
            header[key] = entry(kind, shape, at, end)
            at = end
        return header

    @hypothesis.settings(max_examples=600, deadline=None, database=None)
    @hypothesis.given(header=st.one_of(wild, nearly()), slack=st.sampled_from([0, 0, 0, 1]), padding=st.integers(0, 2))
    def agree(header: dict[str, Any], slack: int, padding: int) -> None:
        ends = [
            info["data_offsets"][1]
            for info in header.values()
            if isinstance(info, dict) and isinstance(info.get("data_offsets"), list) and len(info["data_offsets"]) == 2
        ]
        data = max((end for end in ends if isinstance(end, int) and 0 <= end < 1000), default=0) + slack
        blob = raw(json.dumps(header).encode() + b" " * padding, bytes(range(256)) * 4 if data > 1000 else bytes(data))
        target.write_bytes(blob)
        try:
            metadata, start, tensors = bifolio._native.read_header(target)
        except SafetensorError:
            ours = None
        else:
            ours = {name: (kind, list(shape), blob[start + begin : start + end]) for name, kind, shape, begin, end in tensors}
            assert metadata == header.get("__metadata__")
        try:
            theirs = {
                name: (info["dtype"], info["shape"], bytes(info["data"])) for name, info in reference.deserialize(blob)
            }
        except reference.SafetensorError:
            theirs = None
        assert ours == theirs

    agree()


def test_bytes_of_a_file_that_change_are_never_a_crash(target: Path) -> None:
    hypothesis = need_module("hypothesis")
    st = hypothesis.strategies
    reference_numpy.save_file({"a": numpy.arange(4.0), "b": numpy.ones((2, 3), "int8")}, target, {"k": "v"})
    good = target.read_bytes()
    refused = 0

    @hypothesis.settings(max_examples=400, deadline=None, database=None)
    @hypothesis.given(changes=st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=3),
                      end=st.integers(0, len(good)))  # fmt: skip
    def damage(changes: list[tuple[int, int]], end: int) -> None:
        nonlocal refused
        damaged = bytearray(good)
        for at, value in changes:
            damaged[at] = value
        target.write_bytes(damaged[: end or None])
        try:
            load_file(target, "host")
        except SafetensorError:
            refused += 1

    damage()
    assert refused > 0


def torch_devices() -> list[str]:
    torch = need_module("torch")
    return ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


TORCH_TYPES = ["bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "complex64", "float64",
               "int64", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]  # fmt: skip


def test_tensors_of_pytorch_are_those_of_the_reference(target: Path) -> None:
    torch = need_module("torch")
    reference_torch = pytest.importorskip("safetensors.torch")
    tensors = {name: torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name)) for name in TORCH_TYPES}
    tensors |= {"none": torch.zeros(0, 3), "one": torch.tensor(2.5), "long": torch.rand(1_000_001)}
    reference_torch.save_file(tensors, target)
    for device in torch_devices():
        loaded = load_file(target, device, "pt")
        assert loaded.keys() == tensors.keys()
        storages = set()
        for name, expected in tensors.items():
            tensor = loaded[name]
            assert (tensor.dtype, tensor.shape, str(tensor.device)) == (expected.dtype, expected.shape, device)
            assert torch.equal(tensor.cpu().reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
            if tensor.numel():
                storages.add(tensor.untyped_storage().data_ptr())
        assert len(storages) == 1
        with safe_open(target, "pt", device) as file:
            assert torch.equal(file.get_slice("long")[500:600].cpu(), tensors["long"][500:600])
            assert torch.equal(file.get_slice("bfloat16")[:, 1:, 2].cpu(), tensors["bfloat16"][:, 1:, 2])
    if "cuda:0" in torch_devices():
        for device in (None, 0, "cuda", torch.device("cuda")):
            assert str(load_file(target, device)["one"].device) == "cuda:0"


def test_misaligned_tensors_and_packed_types_of_pytorch(target: Path) -> None:
    torch = need_module("torch")
    header = {"a": entry("U8", [3], 0, 3), "b": entry("F32", [2, 2], 3, 19), "c": entry("F64", [1], 19, 27)}
    data = b"xyz" + struct.pack("<4f", 1, 2, 3, 4) + struct.pack("<d", 5)
    for device in torch_devices():
        target.write_bytes(raw(header, data))
        loaded = load_file(target, device, "pt")
        assert loaded["b"].tolist() == [[1, 2], [3, 4]]
        assert loaded["c"].tolist() == [5]
        assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in loaded.values())
        target.write_bytes(raw({"b": entry("F6_E2M3", [4], 0, 3)}, bytes(3)))
        with pytest.raises(SafetensorError, match="PyTorch does not support"):
            load_file(target, device, "pt")
        if hasattr(torch, "float4_e2m1fn_x2"):
            target.write_bytes(raw({"b": entry("F4", [3, 4], 0, 6)}, b"123456"))
            tensor = load_file(target, device, "pt")["b"]
            assert tuple(tensor.shape) == (3, 2)
            assert bytes(tensor.view(torch.uint8).flatten().tolist()) == b"123456"


def test_arrays_of_cupy_are_those_of_the_reference(target: Path) -> None:
    cupy = need_module("cupy")
    need_gpu()
    tensors = tensors_of_all_types()
    reference_numpy.save_file(tensors, target)
    loaded = load_file(target, "cuda:0", "cupy")
    for name, expected in tensors.items():
        assert isinstance(loaded[name], cupy.ndarray)
        numpy.testing.assert_array_equal(loaded[name].get(), expected)
    with safe_open(target, "cupy", 0) as file:
        numpy.testing.assert_array_equal(file.get_slice("float32")[:, 1:3].get(), tensors["float32"][:, 1:3])
