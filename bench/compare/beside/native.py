"""The programs in C and Rust that are measured beside the Python ones."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from .process import Worker

ROOT = Path(__file__).resolve().parents[3]


class NotBuilt(Exception):
    """A program or library is not there; the message says how to make it."""


class Native:
    """Finds what cargo built, and compiles the C programs against it."""

    def __init__(self, target: Path | None, scratch: Path) -> None:
        built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        self.target, self.scratch = (target or built / "release").resolve(), scratch

    def library(self, name: str, package: str) -> Path:
        """A shared library that cargo built; for tests only, it leaves them in a folder below."""
        for path in (self.target / name, self.target / "deps" / name):
            if path.exists():
                return path
        raise NotBuilt(f"{spell(self.target / name)} is not there; build it with cargo build --release -p {package}")

    def rust(self, path: Path, device: str) -> Worker:
        """The Rust API in the same loop: the reference of the other faces."""
        program = self.target / "examples" / "requests"
        if not program.exists():
            raise NotBuilt(f"{spell(program)} is not there; build it with "
                           "cargo build --release -p bifolio-io --example requests")
        return Worker("rust", [str(program), str(path), device])

    def c(self, path: Path, device: str, name: str = "c", *options: str) -> Worker:
        """The C ABI in the same loop."""
        library, folder = self.library("libbifolio.so", "bifolio-capi"), self.scratch / "lib"
        folder.mkdir(exist_ok=True)
        for alias in ("libbifolio.so", "libbifolio.so.0"):
            link = folder / alias
            link.unlink(missing_ok=True)
            link.symlink_to(library)
        program = self.compile("bench.c", "-I", str(ROOT / "crates/capi/include"), "-L", str(folder),
                               "-lbifolio", f"-Wl,-rpath,{folder}")
        return Worker(name, [str(program), str(path), device, *options])

    def unmodified(self, name: str, memory: str, path: Path, shim: Path | None) -> Worker:
        """A program that knows nothing of Bifolio, with or without the shim."""
        program = self.compile("preload_bench.c", "-ldl")
        environment = {"LD_PRELOAD": str(shim)} if shim else {}
        return Worker(name, [str(program), str(path), memory], environment)

    def compile(self, source: str, *options: str) -> Path:
        program = self.scratch / Path(source).stem
        if program.exists():
            return program
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if shutil.which(compiler[0]) is None:
            raise NotBuilt(f"there is no C compiler ({compiler[0]}) for examples/c/{source}; CC may name one")
        command = [*compiler, "-std=c11", "-Wall", "-Wextra", "-O2", str(ROOT / "examples/c" / source), "-o",
                   str(program), *options]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise NotBuilt(f"examples/c/{source} does not compile: {result.stderr.strip()[:500]}")
        return program


def spell(path: Path) -> str:
    """Relative to the repository where that is possible: reports are kept, and nobody else has our folders."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
