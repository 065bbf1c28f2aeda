"""Requests that run by themselves, the end of the interpreter, and forks."""

import asyncio
import gc
import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bifolio
import pytest
from bifolio import _waiting

from conftest import Kind, bytes_of_seed, need_gpu, need_module, run_program

# More requests than run at a time, so that the last of them wait for their turn.
MANY = 200


@pytest.fixture
def file(path: Path) -> Iterator[bifolio.File]:
    with bifolio.open(path, "r+") as file:
        yield file


def test_futures_bring_the_bytes(path: Path, content: bytes, kind: Kind) -> None:
    buffer = kind.make(len(content))
    with bifolio.open(path) as file:
        future = file.pread(buffer)
    # Closing the file lets its requests go on.
    assert future.result() == len(content)
    assert future.done()
    assert future.exception() is None
    assert future.result(timeout=0) == len(content)
    assert kind.look(buffer) == content


def test_futures_write(folder: Path, content: bytes, kind: Kind) -> None:
    buffer = kind.of(content, folder)
    target = folder / "by-itself"
    with bifolio.open(target, "w") as file:
        futures = [file.pwrite(buffer, 0, 1000), file.pwrite(buffer, 1000, None, True, buffer_offset=1000)]
        assert sum(future.result() for future in futures) == len(content)
    assert target.read_bytes() == content


def test_a_future_says_what_it_did(file: bifolio.File, content: bytes) -> None:
    reading = file.pread(bytearray(len(content))).report()
    assert reading["bytes"] == sum(segment["length"] for segment in reading["plan"]) == len(content)
    assert reading["reason"]
    assert file.pwrite(b"abc").report()["bytes"] == 3
    batch = file.pread_batch(bytearray(9), [(0, 5, 0), (len(content) - 1, 4, 5)])
    assert batch.report()["short"] == [[1, 1]]
    assert file.pread(bytearray()).report() == {"bytes": 0}


def test_a_failure_is_an_exception_whenever_it_is_asked_for(file: bifolio.File) -> None:
    future = file.pread_batch(bytearray(20), [(0, 10, 15)])
    for _ in range(2):
        with pytest.raises(ValueError, match="does not fit"):
            future.result()
    assert isinstance(future.exception(), ValueError)
    with pytest.raises(ValueError, match="does not fit"):
        future.report()
    assert "failed" in repr(future)


def test_a_request_that_is_cancelled_ends_with_its_exception(file: bifolio.File, content: bytes) -> None:
    buffers = [bytearray(len(content)) for _ in range(MANY)]
    futures = [file.pread(buffer) for buffer in buffers]
    for future in reversed(futures):
        future.cancel()
    cancelled = 0
    for future, buffer in zip(futures, buffers, strict=True):
        try:
            assert future.result() == len(content)
            assert buffer == content
        except bifolio.CancelledError as error:
            assert "cancelled" in str(error)
            cancelled += 1
        assert not future.cancel()
    assert cancelled > 0


def test_waiting_ends_at_the_timeout_and_the_request_goes_on(file: bifolio.File, content: bytes) -> None:
    buffers = [bytearray(len(content)) for _ in range(MANY)]
    futures = [file.pread(buffer) for buffer in buffers]
    with pytest.raises(TimeoutError, match="still running"):
        futures[-1].result(timeout=0)
    assert futures[-1].result(timeout=None) == len(content)
    assert all(future.result(timeout=60.5) == len(content) for future in futures)


def test_a_buffer_is_held_until_its_request_is_over(file: bifolio.File, content: bytes) -> None:
    buffers = [bytearray(len(content)) for _ in range(MANY)]
    futures = [file.pread(buffer) for buffer in buffers]
    held = 0
    for future, buffer in zip(reversed(futures), reversed(buffers), strict=True):
        try:
            buffer.append(0)
        except BufferError:
            held += 1
        else:
            assert future.done()
    assert held > 0
    for future, buffer in zip(futures, buffers, strict=True):
        future.result()
        buffer.append(0)


def test_whoever_knows_that_a_request_is_over_may_use_its_buffer(path: Path) -> None:
    # A thread that had seen done() could not resize the buffer: what requests are done with was cleared by the
    # main thread alone, and by nobody where the interpreter's queue was full.
    check("""
import ctypes
queue = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
add = ctypes.pythonapi.Py_AddPendingCall
def use():
    file = bifolio.open(path)
    while add(queue, None) == 0:
        pass
    for _ in range(20):
        buffer = bytearray(size)
        future = file.pread(buffer)
        while not future.done():
            pass
        buffer.append(0)
        print("used", flush=True)
thread = threading.Thread(target=use)
thread.start()
thread.join()
""", path, counts={"used": 20})


def test_futures_may_be_dropped(file: bifolio.File, content: bytes) -> None:
    buffers = [bytearray(len(content)) for _ in range(MANY)]
    for buffer in buffers:
        file.pread(buffer)
        file.pread(bytearray(len(content)))
    gc.collect()
    # Whoever asks often enough finds every buffer free, and whole.
    for buffer in buffers:
        while True:
            try:
                buffer.append(0)
                break
            except BufferError:
                file.pread(bytearray(1)).result()
        assert buffer[:-1] == content


def test_many_threads_wait_for_one_request(file: bifolio.File, content: bytes) -> None:
    futures = [file.pread(bytearray(len(content))) for _ in range(50)]
    results = []
    threads = [threading.Thread(target=lambda: results.append(futures[-1].result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [len(content)] * 8


def test_a_descriptor_becomes_readable_when_the_request_is_over(file: bifolio.File, content: bytes) -> None:
    future = file.pread(bytearray(len(content)))
    for _ in range(2):
        descriptor = future.event_descriptor()
        try:
            assert select.select([descriptor], [], [], 60)[0] == [descriptor]
            assert future.done()
        finally:
            os.close(descriptor)


def test_requests_are_awaited(file: bifolio.File, content: bytes) -> None:
    async def read_all() -> list[int]:
        return await asyncio.gather(*(read(number) for number in range(MANY)))

    async def read(number: int) -> int:
        buffer = bytearray(50_000)
        got = await file.pread(buffer, number * 1000)
        assert buffer == content[number * 1000 : number * 1000 + 50_000]
        return got

    assert asyncio.run(read_all()) == [50_000] * MANY


def test_a_failure_is_raised_where_it_is_awaited(file: bifolio.File) -> None:
    async def read() -> None:
        with pytest.raises(ValueError, match="overlap"):
            await file.pread_batch(bytearray(20), [(0, 10, 0), (0, 10, 5)])

    asyncio.run(read())


def test_a_task_that_is_cancelled_cancels_its_request(file: bifolio.File, content: bytes) -> None:
    async def read() -> tuple[Any, Any]:
        buffers = [bytearray(len(content)) for _ in range(MANY)]
        *before, last = [file.pread(buffer) for buffer in buffers]

        async def wait() -> int:
            return await last

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        for future in before:
            await future
        return outcome, last.exception()

    outcome, reason = asyncio.run(read())
    assert isinstance(outcome, asyncio.CancelledError)
    assert isinstance(reason, bifolio.CancelledError)


def test_a_task_that_is_cancelled_ends_when_its_buffer_is_free(file: bifolio.File, content: bytes) -> None:
    # It ended at once, and bytes of its request landed in a buffer that was thought to be free.
    async def read() -> int:
        under_way = 0
        for _ in range(20):
            buffer = bytearray(len(content))
            future = file.pread(buffer)

            async def wait(future: bifolio.Future = future) -> int:
                return await future

            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            under_way += not future.done()
            # More than once, as who gives up waiting for the end may do.
            while not task.done():
                task.cancel("enough")
                await asyncio.sleep(0)
            buffer.append(0)
            assert future.done()
            if task.cancelled():
                with pytest.raises(asyncio.CancelledError, match="enough"):
                    await task
        return under_way

    assert asyncio.run(read()) > 0


def test_a_loop_that_cannot_watch_descriptors_leaves_none_open() -> None:
    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
            if fd in made:
                raise NotImplementedError
            super().add_reader(fd, callback, *args)

    class UnderWay:
        """A request that is not over."""

        def done(self) -> bool:
            return False

        def event_descriptor(self) -> int:
            made.append(os.eventfd(0))
            return made[-1]

    made: list[int] = []
    loop = Loop()
    try:
        with pytest.raises(NotImplementedError):
            loop.run_until_complete(_waiting.wait(UnderWay()))  # type: ignore[arg-type]
    finally:
        loop.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


def test_a_wait_is_interrupted_and_the_request_goes_on(file: bifolio.File, content: bytes) -> None:
    buffers = [bytearray(len(content)) for _ in range(MANY)]
    waits = threading.Event()

    def press() -> None:
        waits.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    futures = [file.pread(buffer) for buffer in buffers]
    with pytest.raises(KeyboardInterrupt):
        waits.set()
        for future in reversed(futures):
            future.result()
        # Everything was read before the key was pressed: it is waited for here.
        thread.join()
    thread.join()
    assert [future.result() for future in futures] == [len(content)] * MANY
    assert all(buffer == content for buffer in buffers)


HEAD = """
import os, sys, threading
import bifolio
path, size = sys.argv[1], os.path.getsize(sys.argv[1])
"""


def check(program: str, *args: object, counts: dict[str, int] | None = None) -> str:
    """What a program prints, whose end is checked, and how often it prints some words."""
    ended = run_program(HEAD + program, *args)
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stdout}{ended.stderr}"
    assert "Fatal" not in ended.stderr, ended.stderr
    for words, count in (counts or {}).items():
        assert ended.stdout.count(words) == count, f"{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_interpreter_ends_with_reads_under_way(path: Path) -> None:
    for _ in range(5):
        check("""
file = bifolio.open(path)
futures = [file.pread(bytearray(size)) for _ in range(300)]
dropped = [file.pread(bytearray(size)) for _ in range(100)] and None
""", path)


def test_writes_under_way_are_carried_out_before_the_interpreter_ends(path: Path) -> None:
    content = bytes_of_seed(4 << 20, 3)
    source = path.with_suffix(".source")
    source.write_bytes(content)
    check("""
content = open(sys.argv[2], "rb").read()
file = bifolio.open(path, "w")
for at in range(0, len(content), 65536):
    file.pwrite(content[at:at + 65536], at)
""", path, source)
    assert path.read_bytes() == content


def test_the_interpreter_ends_with_threads_that_read(path: Path) -> None:
    for _ in range(5):
        check("""
file = bifolio.open(path)
started = threading.Barrier(5)
def read():
    buffer = bytearray(size)
    started.wait()
    while True:
        file.read_into(buffer)
        file.pread(buffer).result()
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
started.wait()
""", path)


def test_the_interpreter_ends_with_threads_that_wait(path: Path) -> None:
    check("""
file = bifolio.open(path)
futures = [file.pread(bytearray(size)) for _ in range(200)]
def wait():
    for future in reversed(futures):
        try:
            future.result()
        except bifolio.CancelledError:
            pass
for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
""", path)


def test_calls_at_the_very_end_are_refused(path: Path) -> None:
    out = check("""
import atexit
class Late:
    def __del__(self, bifolio=bifolio, path=path, print=print):
        try:
            bifolio.open(path)
        except bifolio.Error as error:
            print(error)
late = Late()
file = bifolio.open(path)
""", path)
    assert "shutting down" in out


def test_an_exit_without_an_end_does_not_hang(path: Path) -> None:
    check("""
file = bifolio.open(path)
futures = [file.pread(bytearray(size)) for _ in range(200)]
os._exit(0)
""", path)


def test_a_child_of_a_process_that_has_used_the_package_is_refused(path: Path) -> None:
    out = check("""
file = bifolio.open(path)
buffer = bytearray(size)
file.read_into(buffer)
futures = [file.pread(bytearray(size)) for _ in range(100)]
child = os.fork()
if child == 0:
    calls = [
        lambda: file.read_into(buffer), lambda: file.pread(buffer), lambda: bifolio.open(path),
        lambda: futures[0].result(), lambda: futures[-1].done(), lambda: futures[-1].cancel(),
        lambda: bifolio.empty(5, "host"), lambda: bifolio.devices(), lambda: file.size,
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except bifolio.Error as error:
            refused += "forked" in str(error) and "spawn" in str(error)
    repr(futures[-1])
    # Everything is dropped, and the child ends as any program does.
    del futures, file, buffer
    import gc
    gc.collect()
    print("refused", refused, "of", len(calls), flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert all(future.result() == size for future in futures)
print("the parent goes on")
""", path)
    assert "refused 9 of 9" in out
    assert "the parent goes on" in out


def test_a_child_lets_go_of_memory_of_its_parent(path: Path) -> None:
    # Threads of the parent allocate meanwhile: the child has their locks as they were, and nobody to open them.
    out = check("""
import gc
file = bifolio.open(path)
ends = threading.Event()
def allocate():
    while not ends.is_set():
        bifolio.empty(1 << 16, "host").copy_from(bytes(1 << 16))
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    memory = bifolio.empty(size, "host")
    part, lent = memory[10:], memoryview(memory)
    future = file.pread(memory)
    child = os.fork()
    if child == 0:
        del memory, part, future, file
        lent.release()
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    # What the child let go of is still the parent's.
    assert future.result() == size
    assert memory.to_bytes() == open(path, "rb").read()
ends.set()
for thread in threads:
    thread.join()
print("the parent goes on")
""", path)
    assert "the parent goes on" in out


def test_a_read_that_waits_for_its_stream_is_cancelled(file: bifolio.File, path: Path) -> None:
    # cancel() said True and did nothing once a thread waited for the stream.
    cupy = need_module("cupy")
    need_gpu()
    # Longer than the memory through which it goes, so that parts of it are still to be read.
    length = 1 << 30
    os.truncate(path, length)
    target = cupy.empty(length, "uint8")
    cancelled = 0
    for _ in range(5):
        future = file.pread(target, stream=cupy.cuda.Stream(non_blocking=True))
        os.close(future.event_descriptor())
        if future.cancel():
            reason = future.exception()
            cancelled += isinstance(reason, bifolio.CancelledError)
    assert cancelled > 0


def test_a_process_that_only_imported_the_package_may_fork(path: Path) -> None:
    out = check("""
child = os.fork()
if child == 0:
    buffer = bytearray(size)
    with bifolio.open(path) as file:
        assert file.read_into(buffer) == size
        assert file.pread(buffer).result() == size
    assert buffer == open(path, "rb").read()
    print("read", flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
""", path)
    assert "read" in out


def test_processes_that_are_spawned_read(path: Path) -> None:
    check("""
import multiprocessing, pathlib
script = pathlib.Path(path).with_suffix(".py")
script.write_text('''
import multiprocessing, sys, bifolio
def read(path):
    buffer = bytearray(1000)
    return bifolio.open(path).read_into(buffer)
if __name__ == "__main__":
    read(sys.argv[1])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(read, [sys.argv[1]] * 4) == [1000] * 4
''')
import subprocess
subprocess.run([sys.executable, str(script), path], check=True, timeout=100)
""", path)
