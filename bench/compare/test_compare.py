#!/usr/bin/env python3
"""Tests of the comparison scripts, on `host` and with files of a few MB: bench/compare/test_compare.py

BIFOLIO_COMPARE_TARGET names cargo's folder with the built programs; what is not built is skipped, with the
reason printed. Peers are not needed: a stand-in for the package shows that loaders are run and checked.
"""

import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from beside import cache, machine, model, process, report, sizes
from beside.loaders import is_installed
from beside.turns import offset_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = Path(os.environ.get("BIFOLIO_COMPARE_TARGET", ROOT / "target/release"))

# The package's interface, as far as the scripts use it, without a line of Bifolio.
STAND_IN = """
    import os

    class File:
        def __init__(self, path):
            self.fd = os.open(path, os.O_RDONLY)

        def read_into(self, buffer, offset=0, length=None, stream=None):
            view = memoryview(buffer)[:length]
            got = os.preadv(self.fd, [view], offset)
            {damage}
            return got

        def close(self):
            os.close(self.fd)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

    def open(path, mode="r"):
        return File(path)
"""


class Sizes(unittest.TestCase):
    def test_sizes_are_read_as_they_are_written(self):
        for text, count in (("64K", 65536), ("1M", 1 << 20), ("8.6GB", 8_600_000_000), ("512", 512), ("0.5G", 1 << 29)):
            self.assertEqual(sizes.size(text), count)
        self.assertEqual([sizes.spell(count) for count in (65536, 3 << 20, 1 << 30, 1000)], ["64K", "3M", "1G", "1000"])

    def test_what_is_no_size_is_refused(self):
        for text in ("", "M", "4X", "4MM", "four"):
            with self.assertRaises(ValueError, msg=text):
                sizes.size(text)


class Sample(unittest.TestCase):
    def test_the_sample_is_a_safetensors_file_of_about_the_asked_size(self):
        with tempfile.TemporaryDirectory() as folder:
            for size in (1 << 20, 30 << 20):
                path = Path(folder) / "sample"
                tensors = model.make(path, size, seed=1)
                self.assertLess(abs(path.stat().st_size - size), 0.1 * size)
                self.assertEqual(tensors[-1].start + tensors[-1].length, path.stat().st_size)
                for one, next_ in itertools.pairwise(tensors):
                    self.assertEqual(one.start + one.length, next_.start, "tensors lie side by side")
                path.unlink()

    def test_no_page_of_the_sample_is_empty_or_comes_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sample"
            model.make(path, 4 << 20, seed=1)
            content = path.read_bytes()[4096:]
            pages = [content[at:at + 4096] for at in range(0, len(content), 4096)]
            self.assertEqual(len(set(pages)), len(pages))
            self.assertNotIn(bytes(4096), pages)

    def test_one_seed_gives_one_file(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / name for name in ("one", "same", "other")]
            for path, seed in zip(paths, (1, 1, 2), strict=True):
                model.make(path, 1 << 20, seed)
            one, same, other = (path.read_bytes() for path in paths)
            self.assertEqual(one, same)
            self.assertNotEqual(one, other)

    def test_a_large_model_has_the_layers_of_one(self):
        names = dict(model.shapes(8_600_000_000))
        self.assertEqual(names["model.layers.3.mlp.gate_proj.weight"], (14336, 4096))
        total = sum(2 * shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in names.values())
        self.assertLess(abs(total - 8_600_000_000), 20_000)


class CacheStates(unittest.TestCase):
    def test_each_state_is_reached_from_each_other(self):
        with disk_folder() as folder:
            path = folder / "sample"
            model.make(path, 8 << 20, seed=1)
            file = cache.CachedFile(path, stripe=1 << 20)
            self.addCleanup(file.close)
            try:
                file.set("cold")
            except OSError as reason:
                print(f"skipped: cache states cannot be set here: {reason}")
                self.skipTest(str(reason))
            for state in ("warm", "half", "warm", "cold", "half", "cold", "warm"):
                wanted = [share << 20 for share in {"warm": [1] * 8, "cold": [0] * 8, "half": [1, 0] * 4}[state]]
                # The kernel may take pages at any moment, which nobody has touched for a while.
                for _ in range(3):
                    file.set(state)
                    stripes = [file.cached(at, 1 << 20) for at in range(0, 8 << 20, 1 << 20)]
                    if stripes == wanted:
                        break
                self.assertEqual(stripes, wanted, state)

    def test_mincore_says_what_cachestat_says(self):
        with disk_folder() as folder:
            path = folder / "sample"
            model.make(path, 2 << 20, seed=1)
            file = cache.CachedFile(path, stripe=1 << 20)
            self.addCleanup(file.close)
            file.set("warm")
            self.assertEqual(file._mincore(0, 1 << 20), 1 << 20)
            if (answer := file._cachestat(0, 1 << 20)) is None:
                print("skipped: this kernel has no cachestat")
            else:
                self.assertEqual(answer, 1 << 20)


class Workers(unittest.TestCase):
    def test_a_worker_that_dies_is_an_error_with_its_last_words(self):
        worker = self.worker("""
            import os, sys
            print("ready", flush=True)
            sys.stdin.readline()
            sys.stderr.write("the peer's last words\\n")
            sys.stderr.flush()
            os.kill(os.getpid(), 11)
        """)
        worker.wait_until_ready(20)
        with self.assertRaisesRegex(process.WorkerError, "SIGSEGV.*last words"):
            worker.ask("load", timeout=20)
        with self.assertRaisesRegex(process.WorkerError, "SIGSEGV"):
            worker.ask("load", timeout=20)

    def test_a_worker_that_hangs_is_ended(self):
        worker = self.worker("""
            import time
            print("ready", flush=True)
            time.sleep(1000)
        """)
        worker.wait_until_ready(20)
        with self.assertRaisesRegex(process.WorkerError, "no answer within"):
            worker.ask("load", timeout=0.2)
        self.assertFalse(worker.is_alive)

    def test_missing_and_broken_peers_are_told_apart(self):
        workers = [self.worker("print('missing it is not installed')", "missing"),
                   self.worker("raise SystemExit(3)", "broken"),
                   self.worker("print('error it has no symbol')", "failing"),
                   self.worker("print('ready 1.0'); input()", "ready")]
        with contextlib.redirect_stderr(io.StringIO()):
            ready, missing, failed = process.start_all(workers, timeout=20)
        self.assertEqual([worker.name for worker in ready], ["ready"])
        self.assertEqual(missing, {"missing": "it is not installed"})
        self.assertEqual(failed, {"broken": "it died by exit code 3", "failing": "it has no symbol"})

    def worker(self, program: str, name: str = "worker") -> process.Worker:
        worker = process.Worker(name, [sys.executable, "-c", textwrap.dedent(program)])
        self.addCleanup(lambda: worker._process.stdin.closed or worker.close())
        return worker


class Reports(unittest.TestCase):
    def test_figures_have_three_digits(self):
        self.assertEqual([report.figure(value) for value in (123.456, 12.3456, 1.23456, 0.123456, 0, None)],
                         ["123", "12.3", "1.23", "0.123", "0", "–"])

    def test_offsets_stay_inside_the_file(self):
        offsets = [offset_of(number, 7, 13, 4096) for number in range(200)]
        self.assertEqual(set(offsets), {slot * 4096 for slot in range(13)})

    def test_the_file_system_is_found(self):
        self.assertEqual(machine.file_system(Path("/proc/self/status")), "proc")


class Programs(unittest.TestCase):
    def test_the_programs_in_c_have_no_warnings(self):
        compiler = os.environ.get("CC", "cc")
        if shutil.which(compiler) is None:
            print(f"skipped: there is no C compiler ({compiler})")
            self.skipTest("no C compiler")
        for source in ("bench.c", "preload_bench.c"):
            result = subprocess.run(
                [compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-fsyntax-only", "-I",
                 str(ROOT / "crates/capi/include"), str(ROOT / "examples/c" / source)], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)


class Scripts(unittest.TestCase):
    """The scripts as people run them."""

    def test_loads_are_measured_and_checked(self):
        data, _ = self.run_script("load.py", "--size", "6MB", "--stripe", "1M", "--repetitions", "2", "--loaders",
                                  "python.*,rust,c,disk,bifolio.read_into.*", stand_in="pass")
        rows = {row["loader"]: row for row in data["rows"]}
        for name in ("python.readinto", "bifolio.read_into.python", *self.built(data)):
            self.assertEqual({state: len(runs) for state, runs in rows[name]["seconds"].items()},
                             {"warm": 2, "half": 2, "cold": 2}, rows[name])
        self.assertEqual(len(rows["disk"]["seconds"]["cold"]), 2)

    def test_loaders_are_chosen_by_state(self):
        data, _ = self.run_script("load.py", "--size", "2MB", "--stripe", "256K", "--repetitions", "warm=2,cold=1",
                                  "--loaders", "python.*@warm+cold,bifolio.read_into.python@half", "--keep-memory",
                                  stand_in="pass")
        runs = {row["loader"]: {state: len(runs) for state, runs in row["seconds"].items()} for row in data["rows"]}
        self.assertEqual(runs, {"python.readinto": {"warm": 2, "cold": 1}, "bifolio.read_into.python": {"half": 3}})

    def test_a_loader_that_brings_other_bytes_fails(self):
        data, text = self.run_script("load.py", "--size", "2MB", "--states", "warm", "--repetitions", "1", "--loaders",
                                     "python.*,bifolio.read_into.python", stand_in="view[-1] ^= 1", status=1)
        rows = {row["loader"]: row for row in data["rows"]}
        self.assertIn("not those of the file", rows["bifolio.read_into.python"]["failed"])
        self.assertFalse(rows["bifolio.read_into.python"]["seconds"])
        self.assertTrue(rows["python.readinto"]["seconds"]["warm"], "the others go on")
        self.assertIn("Failed:", text)

    def test_requests_are_measured_and_checked(self):
        data, text = self.run_script("requests.py", "--region", "4M", "--sizes", "64K,1M", "--repetitions", "2",
                                     "--run-bytes", "2M", stand_in="pass")
        measured = {(row["loader"], row["request_bytes"]): len(row["seconds"]) for row in data["rows"]}
        for name in ("python.readinto", "bifolio.read_into.python", *self.built(data)):
            self.assertEqual([measured[name, size] for size in (65536, 1 << 20)], [2, 2], text)

    def test_requests_that_bring_other_bytes_fail(self):
        data, _ = self.run_script("requests.py", "--region", "1M", "--sizes", "64K", "--repetitions", "1", "--loaders",
                                  "bifolio.read_into.python", stand_in="view[0] ^= 1", status=1)
        self.assertIn("are not what is on the device", data["failed"]["bifolio.read_into.python"])

    def test_the_shim_is_measured_and_checked(self):
        data, text = self.run_script("preload.py", "--region", "4M", "--repetitions", "2", "--calls", "200",
                                     "--run-bytes", "2M", "--sizes", "64K,1M")
        measured = {row["what"] for row in data["rows"]}
        for name in {"shim", "c", "host", "host under the shim"} - set(data["missing"]):
            self.assertIn(name, measured, text)
        for name, reason in data["missing"].items():
            print(f"skipped {name}: {reason}")

    def test_the_package_itself_runs_in_the_scripts(self):
        if not is_installed("bifolio"):
            reason = "the package bifolio is not installed for this Python"
            print(f"skipped: {reason}")
            self.skipTest(reason)
        names = ["bifolio.read_into.python"]
        if is_installed("numpy"):
            names.append("bifolio.read_into.numpy")
        if is_installed("torch") or is_installed("numpy") and is_installed("ml_dtypes"):
            names.append("bifolio.load_file")
        for name in {"bifolio.read_into.numpy", "bifolio.load_file"} - set(names):
            print(f"skipped {name}: PyTorch, or NumPy and ml_dtypes, are not installed for this Python")
        data, text = self.run_script("load.py", "--size", "6MB", "--stripe", "1M", "--repetitions", "1", "--loaders",
                                     "bifolio.*")
        rows = {row["loader"]: row for row in data["rows"]}
        for name in names:
            self.assertEqual(set(rows[name]["seconds"]), {"warm", "half", "cold"}, text)
        data, text = self.run_script("requests.py", "--region", "4M", "--sizes", "64K", "--repetitions", "1",
                                     "--run-bytes", "1M", "--loaders", "bifolio.*")
        self.assertIn("bifolio.read_into.python", {row["loader"] for row in data["rows"]}, text)

    def built(self, data: dict) -> list[str]:
        """The native programs that are there; for the others the reason is printed."""
        for name in {"rust", "c"} & set(data["missing"]):
            print(f"skipped {name}: {data['missing'][name]}")
        return [name for name in ("rust", "c") if name not in data["missing"]]

    def run_script(self, script: str, *options: str, stand_in: str | None = None, status: int = 0) -> tuple[dict, str]:
        with disk_folder() as folder:
            out = folder / "out.json"
            environment = dict(os.environ)
            if stand_in:
                (folder / "bifolio.py").write_text(textwrap.dedent(STAND_IN).format(damage=stand_in))
                environment["PYTHONPATH"] = str(folder)
            command = [sys.executable, str(HERE / script), "--device", "host", "--folder", str(folder), "--target",
                       str(TARGET), "--json", str(out), *options]
            result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
            self.assertEqual(result.returncode, status, result.stdout + result.stderr)
            self.assertFalse([path.name for path in folder.glob("compare-*")], "the sample is removed")
            return json.loads(out.read_text()), result.stdout


@contextlib.contextmanager
def disk_folder():
    """A folder beside this file's build results, as a temporary folder is often in memory only."""
    parent = TARGET if os.access(TARGET, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="compare-test-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    unittest.main()
