"""Buffers: what is refused and why, what is respected, and that exporters are kept and let go of."""

import array
import ctypes
import gc
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bifolio
import pytest
from bifolio import _native

from conftest import OnlyCudaArray, OnlyDlpack, RefusingCudaArray, need_gpu, need_module, run_program


@pytest.fixture
def file(path: Path) -> Any:
    with bifolio.open(path, "r+") as file:
        yield file


def test_read_only_memory_is_no_destination_but_a_source(file: Any, path: Path) -> None:
    with pytest.raises(ValueError, match="bytes is read-only and cannot be read into"):
        file.read_into(b"abc")
    with pytest.raises(ValueError, match="read-only"):
        file.pread(memoryview(bytearray(3)).toreadonly())
    assert file.write_from(b"abc") == 3
    assert path.read_bytes()[:3] == b"abc"


def test_arrays_that_are_read_only_or_cut_are_refused(file: Any) -> None:
    numpy = need_module("numpy")
    frozen = numpy.zeros(8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        file.read_into(frozen)
    for wrong in (numpy.zeros((4, 4))[:, :2], numpy.zeros((4, 4), order="F"), numpy.zeros(8)[::2], numpy.zeros(8)[::-1]):
        with pytest.raises(ValueError, match="not C-contiguous"):
            file.read_into(wrong)
        with pytest.raises(ValueError, match="not C-contiguous"):
            file.write_from(wrong)
        with pytest.raises(ValueError, match="not C-contiguous"):
            file.read_into(OnlyDlpack(wrong))


def test_any_type_of_elements_is_bytes(file: Any, content: bytes) -> None:
    numpy = need_module("numpy")
    for dtype in ("<f8", "datetime64[ns]", [("a", "i4"), ("b", "f4")], "complex64", "bool"):
        values = numpy.empty((2, 3, 4), dtype=dtype)
        assert file.read_into(values) == values.nbytes
        assert values.tobytes() == content[: values.nbytes]
    assert file.read_into(array.array("d", [0] * 4)) == 32


def test_what_is_no_memory_is_refused(file: Any) -> None:
    for wrong in (None, 7, "text", [1, 2], object()):
        with pytest.raises(TypeError, match="expected an array or tensor with the buffer protocol, .*, got "):
            file.read_into(wrong)


def test_memory_in_parts_is_memory(content: bytes, file: Any) -> None:
    memory = bifolio.empty(1000, "host")
    assert (len(memory), memory.nbytes, memory.device) == (1000, 1000, "host:0")
    memory.copy_from(bytes(1000))
    part = memory[100:300]
    assert part.ptr == memory.ptr + 100
    assert file.read_into(part) == 200
    assert memory.to_bytes() == bytes(100) + content[:200] + bytes(700)
    assert bytes(part[50:60]) == content[50:60]
    with pytest.raises(IndexError, match="step"):
        memory[::2]
    with pytest.raises(TypeError):
        memory[3]  # type: ignore[index]
    with pytest.raises(ValueError, match="do not fit"):
        part.copy_from(bytes(201))
    assert bifolio.empty(0, "host").to_bytes() == b""
    assert bytes(bifolio.empty(0, "host")) == b""
    with pytest.raises(AttributeError, match="no CUDA array interface"):
        memory.__cuda_array_interface__  # noqa: B018
    assert not hasattr(memory, "__cuda_array_interface__")


def test_memory_is_an_array_without_a_copy(file: Any, content: bytes) -> None:
    numpy = need_module("numpy")
    memory = bifolio.empty(4096, "host")
    by_buffer, by_dlpack = numpy.frombuffer(memory, "uint8"), numpy.from_dlpack(memory)
    start = memory.ptr
    file.read_into(memory)
    del memory
    gc.collect()
    for seen in (by_buffer, by_dlpack):
        assert seen.ctypes.data == start
        assert seen.tobytes() == content[:4096]
        seen = None
    # Both kinds of capsules, consumed by a package and not at all.
    memory = bifolio.empty(16, "host")
    assert memory.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(memory.__dlpack__(max_version=(1, 0)))
    assert "dltensor_versioned" not in repr(memory.__dlpack__())
    with pytest.raises(BufferError, match="another device"):
        memory.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy=True is not supported"):
        memory.__dlpack__(copy=True)


def test_too_much_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(MemoryError, match="out of device memory"):
        bifolio.empty(1 << 60, "host")
    with pytest.raises(ValueError, match="an offset or length must be"):
        bifolio.empty(-1)
    with pytest.raises((bifolio.Error, ValueError)):
        bifolio.empty(1, "host:999")


def test_memory_is_not_copied_onto_itself() -> None:
    # The copy assumed that source and destination are apart.
    memory = bifolio.empty(1000, "host")
    memory.copy_from(bytes(range(250)) * 4)
    before = memory.to_bytes()
    for source in (memory, memory[:1], memoryview(memory)[:500]):
        with pytest.raises(ValueError, match="overlap"):
            memory.copy_from(source)
    with pytest.raises(ValueError, match="overlap"):
        memory[100:300].copy_from(memory[150:300])
    assert memory.to_bytes() == before
    memory[100:300].copy_from(memory[300:500])
    memory[300:].copy_from(memory[:100])
    memory.copy_from(memory[5:5])
    expected = bytearray(before)
    expected[100:300] = before[300:500]
    expected[300:400] = before[:100]
    assert memory.to_bytes() == expected


def test_empty_arrays_have_every_stream(file: Any, path: Path, content: bytes) -> None:
    # Without an element an array has no address, and was taken for the host's, which has no streams.
    empty = OnlyCudaArray(0, 0)
    for stream in (None, 0, 7):
        assert file.read_into(empty, stream=stream) == 0
        assert file.pread(empty, stream=stream).result() == 0
        assert file.write_from(empty, stream=stream) == 0
        assert file.pwrite(empty, stream=stream).result() == 0
    assert path.read_bytes() == content


class Counts:
    """Counts while nothing else runs in the interpreter, which switches threads only where it is told to."""

    def __enter__(self) -> "Counts":
        self.counted, self.ends, self.before = 0, False, sys.getswitchinterval()
        self.thread = threading.Thread(target=self.count)
        sys.setswitchinterval(1000)
        self.thread.start()
        return self

    def count(self) -> None:
        while not self.ends:
            self.counted += 1
            time.sleep(0)

    def __exit__(self, *exception: object) -> None:
        self.ends = True
        sys.setswitchinterval(self.before)
        self.thread.join()


@pytest.mark.parametrize("last", ["object", "part"])
def test_memory_is_freed_while_other_threads_go_on(last: str) -> None:
    # On a GPU that waits for work, which may wait for a function of the program's in Python.
    content = bytes(64 << 20)
    with Counts() as counts:
        for _ in range(200):
            memory = bifolio.empty(len(content), "host")
            memory.copy_from(content)
            if last == "part":
                memory = memory[5:]
            seen = counts.counted
            del memory
            if counts.counted > seen:
                break
        else:
            pytest.fail("no other thread ran while memory was freed")


LOOKS = """
import sys, threading, time
import bifolio
file = bifolio.open(sys.argv[1])
counted = 0
ends = False
def count():
    global counted
    while not ends:
        counted += 1
        time.sleep(0)
thread = threading.Thread(target=count)
sys.setswitchinterval(1000)
thread.start()
seen = counted
try:
    {call}
except ValueError:
    print("other threads ran" if counted > seen else "nobody ran")
ends = True
thread.join()
"""


@pytest.mark.parametrize("call", ['file.explain(engine="warp")', "file.read_into(bytearray(10), 0, 11)"])
def test_devices_are_looked_for_while_other_threads_go_on(path: Path, call: str) -> None:
    # Calls that end, for a wrong argument, when the device was found: nothing else of them waits. Once in a
    # process, and not long where there is no driver: another thread has a chance to run, and no more.
    outputs = set()
    for _ in range(50):
        ended = run_program(LOOKS.format(call=call), path)
        assert ended.returncode == 0, ended.stderr
        outputs.add(ended.stdout)
        if "other threads ran\n" in outputs:
            return
    pytest.fail(f"no other thread ran while devices were looked for: {outputs}")


def fenced(count: int, **entries: Any) -> OnlyCudaArray:
    memory = _native.FencedMemory(count)
    return OnlyCudaArray(memory.ptr, count, memory, **entries)


def test_cuda_arrays_of_any_shape_are_read(file: Any, content: bytes) -> None:
    memory = _native.FencedMemory(4096)
    for entries in (
        {"shape": (4, 8), "typestr": "<f4"},
        {"shape": (4, 8), "typestr": "<f4", "strides": (32, 4)},
        {"shape": (1, 8, 4), "typestr": "<f4", "strides": (7, 16, 4), "stream": None},
        {"shape": (4, 8), "typestr": "<f4", "version": 2, "stream": 2},
        {"shape": (), "typestr": "<c16"},
    ):
        given = OnlyCudaArray(memory.ptr, 128, memory, **entries)
        expected = 16 if entries["shape"] == () else 128
        assert file.read_into(given, 9) == expected
        assert memory.to_bytes()[:expected] == content[9 : 9 + expected]
    assert file.read_into(OnlyCudaArray(0, 0)) == 0


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"strides": (2,)}, "not C-contiguous"),
        ({"shape": (8, 8), "strides": (1, 8)}, "not C-contiguous"),
        ({"shape": (8, 8), "strides": (8,)}, "not C-contiguous"),
        ({"mask": object()}, "masked"),
        ({"data": (0, False)}, "is 0"),
        ({"data": (0x1234, False)}, "is not GPU memory"),
        ({"data": None}, 'has no "data"'),
        ({"data": "text"}, "not a pair of an address"),
        ({"shape": None}, 'has no "shape"'),
        ({"shape": (-1,)}, "not the shape of an array"),
        ({"shape": (2**62, 2**62)}, "not the shape of an array"),
        ({"shape": (8192,)}, "reach beyond the allocation on host:0, which ends after 4096 bytes"),
        ({"typestr": "x"}, "which is not a type"),
        ({"typestr": "|u0"}, "which is not a type"),
        ({"typestr": "|u99999999999999999999"}, "which is not a type"),
        ({"stream": 0}, "not a positive integer"),
        ({"stream": "s"}, "stream"),
    ],
)
def test_wrong_cuda_arrays_are_refused(file: Any, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        file.read_into(fenced(4096, **entries))


def test_read_only_cuda_arrays_are_sources_only(file: Any) -> None:
    memory = _native.FencedMemory(16)
    frozen = OnlyCudaArray(memory.ptr, 16, memory, data=(memory.ptr, True))
    with pytest.raises(ValueError, match="read-only"):
        file.read_into(frozen)
    assert file.write_from(frozen) == 16


def test_an_interface_that_is_no_dictionary_is_refused(file: Any) -> None:
    class Wrong:
        __cuda_array_interface__ = 7

    with pytest.raises(ValueError, match="is not a dict"):
        file.read_into(Wrong())


def test_arrays_whose_buffer_protocol_says_no_are_asked_on(file: Any, content: bytes, path: Path) -> None:
    # CuPy 14's arrays were refused with their TypeError, before they were asked for the CUDA array interface.
    array = RefusingCudaArray(4096)
    with pytest.raises(TypeError, match="is not host memory"):
        memoryview(array)
    # The second time the type is known.
    for offset in (0, 7):
        assert file.read_into(array, offset) == 4096
        assert array.to_bytes() == content[offset : offset + 4096]
    assert file.write_from(array, 1) == 4096
    assert path.read_bytes()[1:4097] == content[7:4103]


def test_the_refusal_of_what_has_nothing_else_is_told(file: Any) -> None:
    with pytest.raises(TypeError, match="is not host memory"):
        file.read_into(_native.FencedMemory(16))


def test_an_interrupt_is_no_refusal(file: Any) -> None:
    class Interrupted(RefusingCudaArray):
        interrupts = 0

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    array = Interrupted(16)
    # Unknown, and known, to be of a type that refuses the buffer protocol.
    for _ in range(2):
        array.interrupts = 1
        with pytest.raises(KeyboardInterrupt):
            file.read_into(array)
        assert file.read_into(array) == 16


def test_a_type_with_arrays_on_devices_and_on_the_host_is_asked_for_both(file: Any, content: bytes) -> None:
    class Either(mmap.mmap):
        # Closed, it refuses the buffer protocol; open, it lies on the host.
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"shape": (4096,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    fenced, on_device, on_host = _native.FencedMemory(4096), Either(-1, 4096), Either(-1, 4096)
    on_device.close()
    on_device.address, on_host.address = fenced.ptr, 0x1234
    for array, look in ((on_device, fenced.to_bytes), (on_host, lambda: on_host[:]), (on_device, fenced.to_bytes)):
        for offset in (0, 5):
            assert file.read_into(array, offset) == 4096
            assert look() == content[offset : offset + 4096]


def test_streams_are_for_gpus_and_must_be_streams(file: Any) -> None:
    buffer = bytearray(16)
    for call in (file.read_into, file.pread, file.write_from, file.pwrite):
        with pytest.raises(ValueError, match="host:0 has no streams"):
            call(buffer, stream=0)
        for wrong in ("s", True, -1, 1.5, object()):
            with pytest.raises(TypeError, match="expected a stream of PyTorch or CuPy"):
                call(buffer, stream=wrong)


class Tensor(ctypes.Structure):
    """DLTensor, as dlpack.h has it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Exporter:
    """Exports host memory, or memory behind a fence as a GPU's, by capsules of its own making."""

    def __init__(self, count: int, *, version: int | None = None, flags: int = 0, device: int = 1, **fields: Any) -> None:
        self.version, self.flags, self.device, self.fields = version, flags, device, fields
        self.count = count
        self.memory: Any = (ctypes.c_uint8 * count)() if device == 1 else _native.FencedMemory(count)
        self.address = ctypes.addressof(self.memory) if device == 1 else self.memory.ptr
        self.options: list[dict[str, Any]] = []
        self.kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **options: Any) -> Any:
        self.options.append(options)
        if self.version is None and "max_version" in options:
            raise TypeError("an exporter from before version 1")
        sides = self.fields.get("shape", (self.count,))
        strides = self.fields.get("strides")
        tensor = Tensor(
            self.fields.get("data", self.address), self.device, 0, len(sides), 1, self.fields.get("bits", 8), 1,
            (ctypes.c_int64 * len(sides))(*sides), (ctypes.c_int64 * len(sides))(*strides) if strides else None,
            self.fields.get("byte_offset", 0),
        )  # fmt: skip
        if self.version is None:
            managed: Any = Managed(tensor, None, DELETER())
        else:
            managed = ManagedVersioned(self.version, 0, None, DELETER(), self.flags, tensor)
        self.kept.append((tensor, managed))
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(managed), b"dltensor" if self.version is None else b"dltensor_versioned", None)


def test_capsules_with_and_without_a_version_are_read(file: Any, content: bytes) -> None:
    for version in (None, 1):
        exporter = Exporter(64, version=version, shape=(2, 8), bits=16, byte_offset=16)
        assert file.read_into(exporter) == 32
        assert bytes(exporter.memory) == bytes(16) + content[:32] + bytes(16)
        assert exporter.options[0]["max_version"][0] == 1
        assert "stream" not in exporter.options[0]


def test_gpu_capsules_are_asked_for_in_the_order_of_the_default_stream(file: Any, content: bytes) -> None:
    exporter = Exporter(64, device=2)
    assert file.read_into(exporter) == 64
    assert exporter.memory.to_bytes() == content[:64]
    assert [options["stream"] for options in exporter.options] == [1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"version": 1, "flags": 1}, "read-only"),
        ({"version": 2}, "DLPack version 2 is not supported"),
        ({"shape": (4, 4), "strides": (1, 4)}, "not C-contiguous"),
        ({"shape": (-4,)}, "not the shape of an array"),
        ({"data": None}, "is 0"),
        ({"device": 2, "data": None}, "is 0"),
        ({"device": 2, "shape": (65,)}, "reach beyond"),
        ({"device": 10}, r"DLPack device \(10, "),
    ],
)
def test_wrong_capsules_are_refused(file: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        file.read_into(Exporter(64, **options))


def test_what_is_no_capsule_is_refused(file: Any) -> None:
    class Wrong(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            return 7

    with pytest.raises(ValueError, match="no DLPack capsule"):
        file.read_into(Wrong(8))


def test_exporters_are_let_go_of(file: Any) -> None:
    class Watched(bytearray):
        pass

    for call in (
        lambda buffer: file.read_into(buffer),
        lambda buffer: file.write_from(buffer),
        lambda buffer: file.pread(buffer).result(),
        lambda buffer: file.pwrite(buffer).result(),
        lambda buffer: file.read_batch(buffer, [(0, 5, 0)]),
        lambda buffer: file.pread_batch(buffer, [(0, 5, 0)]).result(),
        lambda buffer: pytest.raises(ValueError, file.read_into, buffer, 0, 2000),
        lambda buffer: pytest.raises(ValueError, file.pread, buffer, 0, 2000),
    ):
        buffer = Watched(1000)
        call(buffer)
        buffer.append(1)
        seen = weakref.ref(buffer)
        del buffer
        gc.collect()
        assert seen() is None


def test_capsules_are_given_back(file: Any) -> None:
    numpy = need_module("numpy")
    values = numpy.zeros(100, "uint8")
    seen = weakref.ref(values)
    file.pread(OnlyDlpack(values)).result()
    with pytest.raises(ValueError, match="a buffer of 100"):
        file.read_into(OnlyDlpack(values), 0, 101)
    del values
    gc.collect()
    assert seen() is None


def test_a_mapping_is_not_closed_under_a_request(file: Any) -> None:
    buffer = mmap.mmap(-1, 1 << 20)
    futures = [file.pread(buffer) for _ in range(50)]
    try:
        buffer.close()
    except BufferError:
        pass
    else:
        assert all(future.done() for future in futures)
    for future in futures:
        assert future.result() == 1 << 20
    buffer.close()


def test_tensors_that_are_no_plain_memory_are_refused(file: Any) -> None:
    torch = need_module("torch")
    with pytest.raises(ValueError, match="not C-contiguous"):
        file.read_into(torch.zeros(4, 4).t())
    with pytest.raises(ValueError, match="is on meta"):
        file.read_into(torch.zeros(4, device="meta"))
    with pytest.raises(ValueError, match="sparse"):
        file.read_into(torch.zeros(4, 4).to_sparse())
    with pytest.raises(ValueError, match="lazy"):
        file.write_from(torch.zeros(4, dtype=torch.complex64).conj())
    with pytest.raises(ValueError, match="lazy"):
        file.write_from(torch._neg_view(torch.zeros(4)))


@pytest.mark.parametrize("table", [True, False])
def test_tensors_of_any_type_and_shape_are_bytes(file: Any, content: bytes, table: bool) -> None:
    torch = need_module("torch")
    if table and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this version of PyTorch has no table of C functions")

    class Other(torch.Tensor):
        """Is asked by its methods, as are all tensors of versions without the table."""

    def read(tensor: Any, skipped: int = 0) -> None:
        given = tensor if table else tensor.as_subclass(Other)
        assert file.read_into(given, 3) == tensor.nbytes
        assert given.data_ptr() == tensor.data_ptr()
        assert bytes(tensor.untyped_storage())[skipped : skipped + tensor.nbytes] == content[3 : 3 + tensor.nbytes]

    # The last ones have no words in DLPack, or had none in earlier versions.
    names = ("float32", "uint16", "bool", "bfloat16", "complex64", "complex32", "float8_e4m3fn", "bits8")
    for name in names:
        read(torch.empty(3, 5, dtype=getattr(torch, name)))
    read(torch.empty(()))
    read(torch.empty(4, 0, 2))
    read(torch.empty(8, 4)[2:5], 32)
    read(torch.empty(4, 1, 3).as_strided((4, 1, 3), (3, 77, 1)))
    read(torch.empty(4, requires_grad=True))
    if table:
        read(torch.nn.Parameter(torch.empty(4)))


class Watched(bytearray):
    """Memory of which one can see that it is gone."""


def tensor_over(memory: Watched, table: bool) -> Any:
    """A tensor that alone keeps memory. Without the table of C functions it is asked by its methods."""
    torch = need_module("torch")

    class Other(torch.Tensor):
        pass

    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    # Not as_subclass(), whose tensors keep the one that they were made of.
    return tensor if table else torch.Tensor._make_subclass(Other, tensor)


def give_other_memory(tensor: Any, way: str) -> None:
    torch = need_module("torch")
    other = torch.zeros(1, dtype=torch.uint8)
    if way == "data":
        tensor.data = other
    else:
        tensor.set_(other.untyped_storage())


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("way", ["data", "set_"])
@pytest.mark.parametrize("call", ["pread", "pread_batch", "pwrite"])
def test_a_request_keeps_the_memory_that_its_tensor_had(
    file: Any, content: bytes, call: str, way: str, table: bool
) -> None:
    # The tensor was kept, which had other memory by then: the bytes landed in memory that was free.
    requests: dict[str, Callable[[Any], bifolio.Future]] = {
        "pread": lambda tensor: file.pread(tensor),
        "pread_batch": lambda tensor: file.pread_batch(tensor, [(0, len(content), 0)]),
        "pwrite": lambda tensor: file.pwrite(tensor),
    }
    held = 0
    for _ in range(10):
        memory = Watched(len(content))
        watched, tensor = weakref.ref(memory), tensor_over(memory, table)
        del memory
        # The request comes after all of them.
        writes = [file.pwrite(content) for _ in range(20)]
        future = requests[call](tensor)
        give_other_memory(tensor, way)
        is_there = watched() is not None
        if not writes[10].done():
            assert is_there
            held += 1
        assert future.result() == len(content)
        assert watched() is None
    assert held > 0


def test_a_call_keeps_the_memory_that_its_tensor_had(file: Any, content: bytes) -> None:
    held = 0
    before = sys.getswitchinterval()
    # The other thread goes on until it lets go of the interpreter: it has then looked at its tensor.
    sys.setswitchinterval(1000)
    try:
        for _ in range(20):
            memory = Watched(len(content))
            watched, tensor = weakref.ref(memory), tensor_over(memory, table=True)
            del memory
            writes = [file.pwrite(content) for _ in range(20)]
            calls, got = threading.Event(), []

            def read(tensor: Any = tensor, calls: threading.Event = calls, got: list[int] = got) -> None:
                calls.set()
                got.append(file.read_into(tensor))

            thread = threading.Thread(target=read)
            thread.start()
            calls.wait()
            give_other_memory(tensor, "data")
            is_there, is_early = watched() is not None, not writes[10].done()
            thread.join()
            if is_early:
                # Where PyTorch itself lets go of the interpreter, the call may see the other memory: one byte.
                assert is_there or got == [1]
                held += got == [len(content)]
    finally:
        sys.setswitchinterval(before)
    assert held > 0


def test_a_tensor_that_shares_until_it_is_written_is_written_alone(file: Any, content: bytes) -> None:
    torch = need_module("torch")
    if not hasattr(torch, "_lazy_clone"):
        pytest.skip("this version of PyTorch has no tensors that share until they are written")
    first = torch.zeros(16, dtype=torch.uint8)
    second = torch._lazy_clone(first)
    assert file.read_into(second) == 16
    assert first.tolist() == [0] * 16
    assert bytes(second.tolist()) == content[:16]


def test_gpu_work_before_a_write_is_waited_for(file: Any, path: Path) -> None:
    torch = need_module("torch")
    need_gpu()
    side = torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), side):
        with torch.cuda.stream(stream):
            values = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
            torch.cuda._sleep(50_000_000)
            values.fill_(7)
            file.write_from(values)
        assert path.read_bytes()[: 1 << 20] == bytes([7]) * (1 << 20)
        file.write_from(bytes(1 << 20))


def test_reads_land_in_the_order_of_a_stream(file: Any, content: bytes) -> None:
    torch = need_module("torch")
    need_gpu()
    stream = torch.cuda.Stream()
    values = torch.zeros(len(content), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        values.fill_(9)
    assert file.read_into(values, stream=stream) == len(content)
    with torch.cuda.stream(stream):
        copy = values.clone()
    stream.synchronize()
    assert copy.cpu().numpy().tobytes() == content
    values.zero_()
    torch.cuda.synchronize()
    future = file.pread(values, stream=stream.cuda_stream)
    with torch.cuda.stream(stream):
        copy = values.clone()
    assert future.result() == len(content)
    stream.synchronize()
    assert copy.cpu().numpy().tobytes() == content
    future = file.pread(values, stream=stream)
    del future, values
    with pytest.raises(TypeError, match="expected a stream of PyTorch or CuPy"):
        file.read_into(copy, stream="s")


def test_arrays_of_cupy_share_memory_with_ours(file: Any, content: bytes) -> None:
    cupy = need_module("cupy")
    need_gpu()
    memory = bifolio.empty(4096, "cuda:0")
    seen = cupy.asarray(memory)
    by_dlpack = cupy.from_dlpack(memory)
    file.read_into(memory)
    assert seen.get().tobytes() == by_dlpack.get().tobytes() == content[:4096]
    with pytest.raises(BufferError):
        memoryview(memory)
    stream = cupy.cuda.Stream(non_blocking=True)
    target = cupy.zeros(len(content), "uint8")
    assert file.read_into(target, stream=stream) == len(content)
    stream.synchronize()
    assert target.get().tobytes() == content
