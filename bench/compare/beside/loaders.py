"""Everything that is measured from Python, peers included, behind one small interface.

A loader runs in a process of its own (worker.py). Peers are imported when they are opened, never before, so
that a missing one is a row with a reason. What a loader measures is either

- `tensors`: from a path to a dictionary of tensors on the device, with the allocation that this needs, or
- `bytes`: into one buffer that was there before.

Rows of one kind are comparable with each other.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys

MIB = 1 << 20


class Missing(Exception):
    """The loader cannot run here; the message says why."""


class Loader:
    """One row. `open` may take long; `prepare` and `release` are not timed, `load` is."""

    kind = "tensors"

    def open(self, path: str, device: str) -> str:
        """Imports what is needed; returns versions and settings worth a note."""
        raise NotImplementedError

    def prepare(self, length: int) -> None:
        """Makes what a `bytes` loader reads into."""

    def load(self) -> None:
        """Loads all of the file, and returns when it is on the device."""
        raise NotImplementedError

    def bytes_of(self, name: str, start: int, length: int) -> bytes:
        """What was loaded of a tensor, whose bytes have this place in the file."""
        raise NotImplementedError

    def release(self, keep: bool) -> None:
        """Drops what was loaded, and gives its memory back to the device unless it shall be kept for the next load."""


class TorchTensors(Loader):
    """A loader whose results are PyTorch tensors."""

    needs = ("torch",)
    cuda_only = True

    def open(self, path: str, device: str) -> str:
        if self.cuda_only and not device.startswith("cuda"):
            raise Missing(f"it loads to CUDA devices only, and this is {device}")
        require(*self.needs)
        self.torch = importlib.import_module("torch")
        self.path, self.device, self.tensors = path, "cpu" if device.startswith("host") else device, {}
        if device.startswith("cuda"):
            if not self.torch.cuda.is_available():
                raise Missing("this PyTorch has no CUDA")
            self.torch.cuda.set_device(device)
            self.torch.empty(1, device=device)
        self.start()
        return versions(*self.needs)

    def start(self) -> None:
        """Imports the peer."""

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize()

    def bytes_of(self, name: str, start: int, length: int) -> bytes:
        return torch_bytes(self.torch, self.tensors[name])

    def release(self, keep: bool) -> None:
        self.tensors = {}
        if self.device.startswith("cuda") and not keep:
            # PyTorch would keep the memory for its own later use, and the next loader would not have it.
            self.torch.cuda.empty_cache()


class BifolioLoadFile(Loader):
    """`bifolio.safetensors.load_file`, into PyTorch tensors, or on the host into NumPy arrays where that is all."""

    def open(self, path: str, device: str) -> str:
        # NumPy has no bf16 of its own.
        owner = ("torch",) if device.startswith("cuda") or is_installed("torch") else ("numpy", "ml_dtypes")
        require("bifolio", *owner)
        self.load_file = importlib.import_module("bifolio.safetensors").load_file
        self.torch = importlib.import_module("torch") if owner == ("torch",) else None
        self.path, self.device, self.framework, self.tensors = path, device, owner[0], {}
        self.is_on_gpu = device.startswith("cuda")
        if self.is_on_gpu:
            self.torch.cuda.set_device(device)
            self.torch.empty(1, device=device)
        return versions("bifolio", *owner)

    def load(self) -> None:
        self.tensors = self.load_file(self.path, device=self.device, framework=self.framework)
        if self.is_on_gpu:
            self.torch.cuda.synchronize()

    def bytes_of(self, name: str, start: int, length: int) -> bytes:
        tensor = self.tensors[name]
        return torch_bytes(self.torch, tensor) if self.torch else tensor.tobytes()

    def release(self, keep: bool) -> None:
        self.tensors = {}
        if self.is_on_gpu and not keep:
            self.torch.cuda.empty_cache()


class BifolioGroup(BifolioLoadFile):
    """`bifolio.group(...).load_file`: through the daemon, which reads a file once for all ranks of a node (ranks.py)."""

    def __init__(self, part: str | None = None) -> None:
        self.part = part

    def open(self, path: str, device: str) -> str:
        if "LOCAL_RANK" not in os.environ:
            raise Missing("it is one of several ranks, which ranks.py starts")
        note = super().open(path, device)
        self.group = importlib.import_module("bifolio").group(device=device)
        return note

    def load(self) -> None:
        self.tensors = self.group.load_file(self.path, self.framework, part=self.part)
        if self.is_on_gpu:
            self.torch.cuda.synchronize()

    def release(self, keep: bool) -> None:
        if self.tensors and not keep:
            # Else they would stay in the daemon's cache.
            self.tensors.sleep()
        super().release(keep)


class IntoBuffer(Loader):
    """A loader that fills one buffer."""

    kind = "bytes"
    # Whether it is also measured by single requests.
    answers_requests = True

    def prepare(self, length: int) -> None:
        self.buffer = self.allocate(length)

    def load(self) -> None:
        self.read(self.buffer, 0, os.path.getsize(self.path))

    def allocate(self, length: int) -> object:
        raise NotImplementedError

    def read(self, buffer: object, offset: int, length: int) -> None:
        """One request through the handle that `requests_open` made, or through one of its own."""
        raise NotImplementedError

    def requests_open(self) -> None:
        """Opens the file once for many calls of `request`."""

    def request(self, buffer: object, offset: int, length: int) -> None:
        """One request of many."""
        raise NotImplementedError

    def requests_close(self) -> None:
        """Closes what `requests_open` opened."""

    def bytes_of(self, name: str, start: int, length: int) -> bytes:
        return self.copy(self.buffer, start, length)

    def copy(self, buffer: object, start: int, length: int) -> bytes:
        raise NotImplementedError

    def release(self, keep: bool) -> None:
        self.buffer = None


class Memory:
    """Where a `bytes` loader's buffer comes from: one of torch, cupy, numpy and python."""

    def __init__(self, source: str, device: str) -> None:
        self.source, self.device = source, device
        if source != "python":
            require(source)
            self.module = importlib.import_module(source)
        if source == "torch":
            self.module.cuda.set_device(device)
        if source == "cupy":
            self.module.cuda.Device(int(device.partition(":")[2] or 0)).use()

    def allocate(self, length: int) -> object:
        match self.source:
            case "torch":
                return self.module.empty(length, dtype=self.module.uint8, device=self.device)
            case "cupy" | "numpy":
                return self.module.empty(length, dtype=self.module.uint8)
            case _:
                return bytearray(length)

    def copy(self, buffer: object, start: int, length: int) -> bytes:
        part = buffer[start:start + length]
        match self.source:
            case "torch":
                return torch_bytes(self.module, part)
            case "cupy":
                return part.get().tobytes()
            case "numpy":
                return part.tobytes()
            case _:
                return bytes(part)

    def release(self) -> None:
        if self.source == "torch":
            self.module.cuda.empty_cache()
        if self.source == "cupy":
            self.module.get_default_memory_pool().free_all_blocks()


class BifolioReadInto(IntoBuffer):
    """`bifolio.open(path).read_into(buffer)`."""

    def __init__(self, source: str) -> None:
        self.source = source

    def open(self, path: str, device: str) -> str:
        check_source(self.source, device)
        require("bifolio")
        self.memory = Memory(self.source, device)
        self.bifolio, self.path, self.file = importlib.import_module("bifolio"), path, None
        return versions("bifolio", *([] if self.source == "python" else [self.source]))

    def allocate(self, length: int) -> object:
        return self.memory.allocate(length)

    def read(self, buffer: object, offset: int, length: int) -> None:
        with self.bifolio.open(self.path) as file:
            expect(file.read_into(buffer, offset, length), length)

    def requests_open(self) -> None:
        self.file = self.bifolio.open(self.path)
        self.read_into = self.file.read_into

    def request(self, buffer: object, offset: int, length: int) -> None:
        expect(self.read_into(buffer, offset, length), length)

    def requests_close(self) -> None:
        self.file.close()

    def copy(self, buffer: object, start: int, length: int) -> bytes:
        return self.memory.copy(buffer, start, length)

    def release(self, keep: bool) -> None:
        super().release(keep)
        if not keep:
            self.memory.release()


class KvikIO(IntoBuffer):
    """`kvikio.CuFile.read` with a number of threads and a task size."""

    def __init__(self, threads: int, task_bytes: int, direct: bool = False) -> None:
        self.threads, self.task_bytes, self.direct = threads, task_bytes, direct

    def open(self, path: str, device: str) -> str:
        if not device.startswith("cuda"):
            raise Missing(f"it loads to CUDA devices only, and this is {device}")
        require("kvikio", "cupy")
        self.memory = Memory("cupy", device)
        self.kvikio, self.path, self.file = importlib.import_module("kvikio"), path, None
        defaults = importlib.import_module("kvikio.defaults")
        # Its pinned buffers have to hold a task, or each task is read in pieces.
        self.settings = defaults.set({
            "num_threads": self.threads,
            "task_size": self.task_bytes,
            "bounce_buffer_size": max(self.task_bytes, defaults.get("bounce_buffer_size")),
            "auto_direct_io_read": self.direct,
        })
        mode = "POSIX" if defaults.is_compat_mode_preferred() else "cuFile"
        return f"{versions('kvikio', 'cupy')}; path {mode}"

    def allocate(self, length: int) -> object:
        return self.memory.allocate(length)

    def read(self, buffer: object, offset: int, length: int) -> None:
        with self.kvikio.CuFile(self.path, "r") as file:
            expect(file.read(buffer, length, offset), length)

    def requests_open(self) -> None:
        self.file = self.kvikio.CuFile(self.path, "r")

    def request(self, buffer: object, offset: int, length: int) -> None:
        expect(self.file.read(buffer, length, offset), length)

    def requests_close(self) -> None:
        self.file.close()

    def copy(self, buffer: object, start: int, length: int) -> bytes:
        return self.memory.copy(buffer, start, length)

    def release(self, keep: bool) -> None:
        super().release(keep)
        if not keep:
            self.memory.release()


class Safetensors(TorchTensors):
    """`safetensors.torch.load_file`, with one of its backends."""

    needs = ("safetensors", "torch")
    cuda_only = False

    def __init__(self, backend: str | None = None) -> None:
        self.backend = backend

    def start(self) -> None:
        self.load_file = importlib.import_module("safetensors.torch").load_file
        self.options = {}
        if self.backend:
            if "backend" not in parameters(self.load_file):
                raise Missing(f"this safetensors ({versions('safetensors')}) has no choice of backends")
            self.options = {"backend": self.backend}

    def load(self) -> None:
        self.tensors = self.load_file(self.path, device=self.device, **self.options)
        self.wait()


class SafetensorsPrefetch(TorchTensors):
    """`safe_open(...).prefetch()`, which newer releases have: threads and pinned staging memory."""

    needs = ("safetensors", "torch")

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def start(self) -> None:
        self.safe_open = importlib.import_module("safetensors").safe_open
        if not hasattr(self.safe_open, "prefetch"):
            raise Missing(f"this safetensors ({versions('safetensors')}) has no prefetch")

    def load(self) -> None:
        with self.safe_open(self.path, framework="pt", device=self.device) as file:
            with file.prefetch(threads=self.threads) as loader:
                self.tensors = {name: tensor for name, tensor in loader}
        self.wait()


class FastSafetensors(TorchTensors):
    """`fastsafetensors.SafeTensorsFileLoader`, which reads past the page cache unless told otherwise."""

    needs = ("fastsafetensors", "torch")

    def __init__(self, cufile: bool, direct: bool = True) -> None:
        self.cufile, self.direct, self.cuda_only = cufile, direct, cufile

    def start(self) -> None:
        if not self.direct:
            os.environ["FASTSAFETENSORS_ODIRECT"] = "0"
        self.module, self.buffers, self.loader = importlib.import_module("fastsafetensors"), None, None

    def load(self) -> None:
        group = self.module.SingleGroup()
        self.loader = self.module.SafeTensorsFileLoader(group, self.device, nogds=not self.cufile)
        self.loader.add_filenames({0: [self.path]})
        self.buffers = self.loader.copy_files_to_device()
        self.tensors = {name: self.buffers.get_tensor(name) for name in self.loader.get_keys()}
        self.wait()

    def release(self, keep: bool) -> None:
        self.tensors = {}
        for part in (self.buffers, self.loader):
            if part is not None:
                part.close()
        self.buffers = self.loader = None
        super().release(keep)


class InstantTensor(TorchTensors):
    """`instanttensor.safe_open`, by its default (past the page cache) or buffered."""

    needs = ("instanttensor", "torch")

    def __init__(self, buffered: bool) -> None:
        self.buffered = buffered

    def start(self) -> None:
        self.module = importlib.import_module("instanttensor")
        self.options = {"backend": self.module.BackendPolicy.BUFFERED} if self.buffered else {}

    def load(self) -> None:
        with self.module.safe_open(self.path, framework="pt", device=self.device, **self.options) as file:
            self.tensors = dict(file.tensors())
        self.wait()


class RunaiStreamer(TorchTensors):
    """`runai_model_streamer.SafetensorsStreamer`, with a strategy and a number of readers."""

    needs = ("runai_model_streamer", "torch")
    cuda_only = False

    def __init__(self, strategy: str | None = None, concurrency: int | None = None) -> None:
        self.strategy, self.concurrency = strategy, concurrency

    def start(self) -> None:
        if self.strategy:
            os.environ["RUNAI_STREAMER_FS_STRATEGY"] = self.strategy
        if self.concurrency:
            os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(self.concurrency)
        self.streamer = importlib.import_module("runai_model_streamer").SafetensorsStreamer

    def load(self) -> None:
        with self.streamer() as streamer:
            streamer.stream_file(self.path, device=self.device)
            self.tensors = {name: tensor for name, tensor in streamer.get_tensors()}
        self.wait()


class PinnedCopy(IntoBuffer):
    """What people write by hand: two pinned buffers, `readinto`, and `copy_` without waiting."""

    SLOT = 16 * MIB
    answers_requests = False

    def open(self, path: str, device: str) -> str:
        check_source("torch", device)
        self.memory, self.path = Memory("torch", device), path
        self.torch = self.memory.module
        self.slots = [self.torch.empty(self.SLOT, dtype=self.torch.uint8, pin_memory=True) for _ in range(2)]
        self.views = [memoryview(slot.numpy()) for slot in self.slots]
        self.copied = [self.torch.cuda.Event() for _ in self.slots]
        return versions("torch")

    def allocate(self, length: int) -> object:
        return self.memory.allocate(length)

    def read(self, buffer: object, offset: int, length: int) -> None:
        with open(self.path, "rb", buffering=0) as file:
            file.seek(offset)
            done, turn = 0, 0
            while done < length:
                self.copied[turn].synchronize()
                got = file.readinto(self.views[turn][:min(self.SLOT, length - done)])
                if not got:
                    raise EOFError(f"{self.path} ends at {offset + done}")
                buffer[done:done + got].copy_(self.slots[turn][:got], non_blocking=True)
                self.copied[turn].record()
                done, turn = done + got, 1 - turn
        self.torch.cuda.synchronize()

    def copy(self, buffer: object, start: int, length: int) -> bytes:
        return self.memory.copy(buffer, start, length)

    def release(self, keep: bool) -> None:
        super().release(keep)
        if not keep:
            self.memory.release()


class HostReadinto(IntoBuffer):
    """On the host there is nothing to copy to: Python's own `readinto`."""

    def open(self, path: str, device: str) -> str:
        check_source("python", device)
        self.path, self.file = path, None
        return f"Python {sys.version.split()[0]}"

    def allocate(self, length: int) -> object:
        return bytearray(length)

    def read(self, buffer: object, offset: int, length: int) -> None:
        with open(self.path, "rb", buffering=0) as file:
            fill(file, memoryview(buffer)[:length], offset)

    def requests_open(self) -> None:
        self.file = open(self.path, "rb", buffering=0)

    def request(self, buffer: object, offset: int, length: int) -> None:
        fill(self.file, memoryview(buffer)[:length], offset)

    def requests_close(self) -> None:
        self.file.close()

    def copy(self, buffer: object, start: int, length: int) -> bytes:
        return bytes(buffer[start:start + length])


class Link(IntoBuffer):
    """The bound of every warm load: one copy from pinned memory, as long as the file. It reads nothing."""

    kind = "limit"
    answers_requests = False
    PIECE = 256 * MIB

    def open(self, path: str, device: str) -> str:
        check_source("torch", device)
        self.memory, self.path = Memory("torch", device), path
        self.torch = self.memory.module
        self.pinned = self.torch.empty(self.PIECE, dtype=self.torch.uint8, pin_memory=True)
        return versions("torch")

    def allocate(self, length: int) -> object:
        return self.memory.allocate(length)

    def read(self, buffer: object, offset: int, length: int) -> None:
        for at in range(0, length, self.PIECE):
            part = buffer[at:at + self.PIECE]
            part.copy_(self.pinned[:len(part)], non_blocking=True)
        self.torch.cuda.synchronize()

    def release(self, keep: bool) -> None:
        super().release(keep)
        if not keep:
            self.memory.release()


# Named for what they are and how they are set. Order is that of the first round; later rounds turn it.
LOADERS = {
    "bifolio.load_file": lambda: BifolioLoadFile(),
    "bifolio.group": lambda: BifolioGroup(),
    "bifolio.group.share": lambda: BifolioGroup("share"),
    "bifolio.read_into.torch": lambda: BifolioReadInto("torch"),
    "bifolio.read_into.cupy": lambda: BifolioReadInto("cupy"),
    "bifolio.read_into.numpy": lambda: BifolioReadInto("numpy"),
    "bifolio.read_into.python": lambda: BifolioReadInto("python"),
    "safetensors.load_file": lambda: Safetensors(),
    "safetensors.pread": lambda: Safetensors("pread"),
    "safetensors.prefetch8": lambda: SafetensorsPrefetch(8),
    "safetensors.prefetch16": lambda: SafetensorsPrefetch(16),
    "fastsafetensors.cufile": lambda: FastSafetensors(cufile=True),
    "fastsafetensors.direct": lambda: FastSafetensors(cufile=False),
    "fastsafetensors.buffered": lambda: FastSafetensors(cufile=False, direct=False),
    "instanttensor.direct": lambda: InstantTensor(buffered=False),
    "instanttensor.buffered": lambda: InstantTensor(buffered=True),
    "runai": lambda: RunaiStreamer(),
    "runai.buffered16": lambda: RunaiStreamer("sync_buffered", 16),
    "kvikio.1x4M": lambda: KvikIO(1, 4 * MIB),
    "kvikio.8x4M": lambda: KvikIO(8, 4 * MIB),
    "kvikio.16x4M": lambda: KvikIO(16, 4 * MIB),
    "kvikio.16x16M": lambda: KvikIO(16, 16 * MIB),
    "kvikio.16x4M.direct": lambda: KvikIO(16, 4 * MIB, direct=True),
    "pytorch.pinned": lambda: PinnedCopy(),
    "python.readinto": lambda: HostReadinto(),
    "link": lambda: Link(),
}


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def require(*packages: str) -> None:
    for package in packages:
        if not is_installed(package):
            raise Missing(f"the package {package} is not installed")


def versions(*packages: str) -> str:
    """Name and version of packages, by the names they are installed under."""
    names = importlib.metadata.packages_distributions()
    return ", ".join(f"{(names.get(package) or [package])[0]} {_version(names, package)}" for package in packages)


def parameters(function: object) -> set[str]:
    return set(importlib.import_module("inspect").signature(function).parameters)


def torch_bytes(torch: object, tensor: object) -> bytes:
    """The bytes of a tensor; through uint8, as NumPy has no bf16."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def check_source(source: str, device: str) -> None:
    """Torch and CuPy stand for GPU memory here, NumPy and plain Python for the host's."""
    if (source in ("torch", "cupy")) != device.startswith("cuda"):
        raise Missing(f"{source} memory is not what is compared on {device}")
    if source != "python":
        require(source)


def expect(got: int, length: int) -> None:
    if got != length:
        raise EOFError(f"{got} bytes came where {length} were asked for")


def fill(file: object, view: memoryview, offset: int) -> None:
    file.seek(offset)
    while view:
        got = file.readinto(view)
        if not got:
            raise EOFError("the file ends before the request")
        view = view[got:]


def _version(names: dict, package: str) -> str:
    try:
        return importlib.metadata.version((names.get(package) or [package])[0])
    except importlib.metadata.PackageNotFoundError:
        # Imported from a folder, without having been installed.
        return getattr(importlib.import_module(package), "__version__", "of no known version")
