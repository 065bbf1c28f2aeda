"""Files and buffers of the tests. A test of what is not there prints why it is skipped."""

import ctypes
import importlib
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bifolio
import pytest
from bifolio import _native


def bytes_of_seed(count: int, seed: int = 1) -> bytes:
    """Bytes without a pattern."""
    import random

    return random.Random(seed).randbytes(count)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder on a disk, where temporary folders may live in memory."""
    import tempfile

    root = Path(__file__).resolve().parents[3] / "build"
    root.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix="python-") as path:
        yield Path(path)


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> Iterator[None]:
    """Here and in programs that are started, Ctrl-C interrupts: a job in the background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def content() -> bytes:
    return bytes_of_seed(3_000_001)


@pytest.fixture
def path(folder: Path, content: bytes, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file with the content."""
    path = folder / f"{abs(hash(request.node.nodeid)):x}"
    path.write_bytes(content)
    yield path
    path.unlink(missing_ok=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Every skip, and every expected failure, is a line in the file that `make test` lists at its end."""
    path = os.environ.get("BIFOLIO_TEST_SKIPS")
    if path is None or not report.skipped:
        return
    expected = getattr(report, "wasxfail", None)
    said = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    reason = said if expected is None else f"expected failure: {expected}"
    with open(path, "a") as file:
        file.write(f"{report.fspath}\t{report.nodeid}\t{' '.join(reason.split())}\n")


def gpus() -> list[str]:
    return [device["id"] for device in bifolio.devices() if device["id"].startswith("cuda:")]


def need_gpu() -> None:
    if not gpus():
        pytest.skip("there is no CUDA device here")


# What the set-up of the tests brings: under `make test` it is not skipped but a failure where it is missing.
REQUIRED = {"hypothesis", "ml_dtypes", "numpy", "safetensors", "safetensors.numpy"}


def need_module(name: str) -> Any:
    if name in REQUIRED and os.environ.get("BIFOLIO_TEST_REQUIRE_ALL") == "1":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def need_program(name: str) -> str:
    """The path of a program that the set-up of the tests installs."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        assert os.environ.get("BIFOLIO_TEST_REQUIRE_ALL") != "1", f"{name} is missing: scripts/setup.sh test installs it"
        pytest.skip(f"{name} is not installed")
    return found


def encrypt_folder(plain: Path, vault: Path, passphrase: str) -> None:
    """Makes an encrypted directory of the files of a folder, by gocryptfs itself."""
    gocryptfs, unmount = need_program("gocryptfs"), need_program("fusermount3")
    vault.mkdir()
    mounted = vault.with_name(vault.name + "-mounted")
    mounted.mkdir()
    say = {"input": passphrase + "\n", "text": True, "check": True, "capture_output": True}
    subprocess.run([gocryptfs, "-q", "-init", "-scryptn", "10", vault], **say)
    subprocess.run([gocryptfs, "-q", vault, mounted], **say)
    try:
        shutil.copytree(plain, mounted, dirs_exist_ok=True)
    finally:
        subprocess.run([unmount, "-u", mounted], check=True)
    mounted.rmdir()


class OnlyDlpack:
    """An object with DLPack and nothing else."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __dlpack__(self, **options: Any) -> Any:
        return self.inner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()


class OnlyCudaArray:
    """An object with the CUDA array interface and nothing else."""

    def __init__(self, address: int, nbytes: int, keeper: Any = None, **entries: Any) -> None:
        interface = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = interface | entries
        self.keeper = keeper


class RefusingCudaArray(_native.FencedMemory):
    """An object with the CUDA array interface whose buffer protocol raises TypeError, as CuPy's arrays do."""

    def __new__(cls, nbytes: int) -> "RefusingCudaArray":
        made = super().__new__(cls, nbytes)
        made.nbytes = nbytes
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}


class Kind:
    """A kind of buffer: how to make one of a number of bytes, and how to look into it."""

    def __init__(self, make: Callable[[int], Any], look: Callable[[Any], bytes] = bytes) -> None:
        self.make, self.look = make, look

    def of(self, content: bytes, folder: Path) -> Any:
        """A buffer with content, which is brought there as the test of reads shows to work."""
        buffer = self.make(len(content))
        source = folder / "source"
        source.write_bytes(content)
        with bifolio.open(source) as file:
            file.read_into(buffer)
        return buffer


def _numpy(count: int) -> Any:
    return need_module("numpy").zeros(count, dtype="uint8")


def _torch(device: str) -> Callable[[int], Any]:
    def make(count: int) -> Any:
        torch = need_module("torch")
        if device != "cpu" and not torch.cuda.is_available():
            pytest.skip("PyTorch finds no CUDA device here")
        return torch.zeros(count, dtype=torch.uint8, device=device)

    return make


def _cupy(count: int) -> Any:
    cupy = need_module("cupy")
    need_gpu()
    return cupy.zeros(count, dtype="uint8")


def _memory(device: str) -> Callable[[int], Any]:
    def make(count: int) -> Any:
        if device != "host":
            need_gpu()
        return bifolio.empty(count, device)

    return make


def _fenced(count: int) -> Any:
    memory = _native.FencedMemory(count)
    return OnlyCudaArray(memory.ptr, count, memory)


def _dlpack_of(make: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda count: OnlyDlpack(make(count))


KINDS = {
    "bytearray": Kind(bytearray),
    "memoryview": Kind(lambda count: memoryview(bytearray(count))),
    "mmap": Kind(lambda count: mmap.mmap(-1, max(count, 1))[:0] if count == 0 else mmap.mmap(-1, count)),
    "ctypes": Kind(lambda count: (ctypes.c_uint8 * count)()),
    "numpy": Kind(_numpy),
    "memory-host": Kind(_memory("host"), lambda memory: memory.to_bytes()),
    "fenced": Kind(_fenced, lambda array: array.keeper.to_bytes()),
    "refusing": Kind(RefusingCudaArray, lambda array: array.to_bytes()[: array.nbytes]),
    "dlpack-numpy": Kind(_dlpack_of(_numpy), lambda array: bytes(array.inner)),
    "dlpack-memory": Kind(_dlpack_of(_memory("host")), lambda array: array.inner.to_bytes()),
    "torch-cpu": Kind(_torch("cpu"), lambda tensor: tensor.numpy().tobytes()),
    "torch-cuda": Kind(_torch("cuda:0"), lambda tensor: tensor.cpu().numpy().tobytes()),
    "cupy": Kind(_cupy, lambda array: array.get().tobytes()),
    "memory-cuda": Kind(_memory("cuda:0"), lambda memory: memory.to_bytes()),
    "dlpack-torch-cuda": Kind(_dlpack_of(_torch("cuda:0")), lambda array: array.inner.cpu().numpy().tobytes()),
    "dlpack-cupy": Kind(_dlpack_of(_cupy), lambda array: array.inner.get().tobytes()),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def run_program(program: str, *args: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """A program of its own; one that hangs fails."""
    command = [sys.executable, "-c", program, *map(str, args)]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)


class Daemon:
    """A daemon in a process of its own, at a socket that programs find by themselves."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.chmod(0o700)
        self.socket = folder / "cache.sock"
        command = [sys.executable, "-m", "bifolio.daemon", "--device", "host:0", "--device", "host:1", "--memory", "64M"]
        command += options
        environment = {**os.environ, "BIFOLIO_SOCKET": str(self.socket)}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        assert said == f"bifolio: serving at {self.socket}\n", said + self.process.stderr.read()
        # Whatever it says later is not waited for by anybody.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def server(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    (tmp_path / "run").mkdir()
    running = Daemon(tmp_path / "run")
    monkeypatch.setenv("BIFOLIO_SOCKET", str(running.socket))
    yield running
    if running.process.poll() is None:
        assert running.end() == 0
