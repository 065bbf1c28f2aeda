"""What programs are told when others need memory of a device, and what a daemon is told about it."""

import array
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bifolio
import pytest
from bifolio.safetensors import load_file

from conftest import Daemon, bytes_of_seed, need_module

MESSAGE_BYTES_MAX = 160 << 10
# Of the protocol (docs/protocol.md).
RECALL, GONE = 15, 17
# The first file that a connection opens.
FIRST = 1


class Between:
    """Somebody between a program and the daemon, who says things that the daemon would say if memory were needed. A real need
    cannot be made here: it is one of the whole machine's."""

    def __init__(self, folder: Path, daemon: Path) -> None:
        folder.mkdir(mode=0o700)
        self.path = folder / "cache.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.daemon, self.program = daemon, None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                program, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server.connect(str(self.daemon))
            self.program = program
            for one, other in ((program, server), (server, program)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(one, MESSAGE_BYTES_MAX, 4)
                if not data:
                    break
                socket.send_fds(other, [data], descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def say(self, *words: int, text: bytes = b"") -> None:
        self.program.send(array.array("Q", words).tobytes() + text + bytes(-len(text) % 8))

    def recall(self, start: int, end: int, milliseconds: int, file: int = FIRST, device: int = 0) -> None:
        self.say(RECALL, 0, file, device, start, end, milliseconds)

    def go(self, why: str) -> None:
        self.say(GONE, 0, len(why.encode()), text=why.encode())
        self.program.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def between(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    made = Between(tmp_path / "between", daemon.socket)
    monkeypatch.setenv("BIFOLIO_SOCKET", str(made.path))
    yield made
    made.listener.close()


def until(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def test_a_mapping_says_what_it_is_to_release(between: Between, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes_of_seed(300_000))
    with bifolio.map(path, 65_536, 200_000, device="host:0", shared=True) as mapping:
        assert mapping.recalls() == []
        mapping.acquire(1000, 50_000)
        assert mapping.recalls() == []
        # Another device's, and another file's.
        between.recall(66_536, 116_536, 60_000, device=1)
        between.recall(66_536, 116_536, 60_000, file=FIRST + 1)
        between.recall(66_536, 116_536, 60_000)
        until("it is told", lambda: mapping.recalls() != [])
        [recall] = mapping.recalls()
        assert (recall.offset, recall.nbytes) == (1000, 50_000)
        assert 0 < recall.seconds <= 60
        assert repr(recall).startswith("<bifolio.Recall: 50000 bytes from 1000 on, within ")
        mapping.release(1000, 50_000)
        assert mapping.recalls() == [], "nothing of it is in use"
        # Who acquires it again has it to release again.
        mapping.acquire(0, 2000)
        assert len(mapping.recalls()) == 1
        mapping.release(0, 2000)
        mapping.acquire(150_000, 10)
        assert mapping.recalls() == [], "what was asked for lies elsewhere"
        mapping.release(150_000, 10)
        mapping.acquire(1000, 50_000)
        between.recall(66_536, 116_536, 0)
        until("it is not wanted any more", lambda: mapping.recalls() == [])


# Symptom: wake() failed, and arrays had nothing behind them. Cause: an array that outlives the release of its part has it
# pinned, and only what is acquired can be pinned again.
def test_arrays_count_and_sleep_is_enough(between: Between, tmp_path: Path) -> None:
    numpy = need_module("numpy")
    path = tmp_path / "data"
    path.write_bytes(bytes_of_seed(100_000))
    with bifolio.map(path, device="host:0", shared=True) as mapping:
        mapping.acquire()
        seen = numpy.asarray(mapping)
        between.recall(0, 100_000, 60_000)
        until("it is told", lambda: mapping.recalls() != [])
        mapping.release()
        assert len(mapping.recalls()) == 1, "an array has it"
        mapping.sleep()
        assert mapping.recalls() == []
        mapping.wake()
        assert len(mapping.recalls()) == 1
        assert seen.tobytes() == path.read_bytes()
        del seen
        assert mapping.recalls() == []


def test_tensors_are_asked_for_and_give_their_memory_back(between: Between, daemon: Daemon, tmp_path: Path) -> None:
    numpy = need_module("numpy")
    path = tmp_path / "model.safetensors"
    content = bytes_of_seed(8 << 20)
    need_module("safetensors.numpy").save_file({"weights": numpy.frombuffer(content, "uint8")}, path)
    tensors = load_file(path, device="host:0", shared=True)
    assert tensors.recalled is None
    between.recall(0, path.stat().st_size, 60_000)
    until("it is told", lambda: tensors.recalled is not None)
    assert 0 < tensors.recalled <= 60
    tensors.sleep()
    assert tensors.recalled is None
    between.recall(0, path.stat().st_size, 0)
    tensors.wake()
    assert tensors["weights"].tobytes() == content
    until("nothing is asked for", lambda: tensors.recalled is None)


def test_who_is_disconnected_is_told_why_and_connects_again(between: Between, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"a" * 100_000)
    mapping = bifolio.map(path, device="host:0", shared=True)
    mapping.acquire()
    view = memoryview(mapping)
    between.go("other programs need memory, and it has kept some")
    with pytest.raises(ConnectionError, match="other programs need memory, and it has kept some"):
        for _ in range(1000):
            mapping.acquire(0, 10)
    assert bytes(view) == b"a" * 100_000, "what was acquired stays its own"
    with bifolio.map(path, device="host:0", shared=True) as again:
        again.acquire()
        assert bytes(memoryview(again)) == b"a" * 100_000


def test_what_is_not_shared_is_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(10))
    with bifolio.map(path, device="host:0") as mapping:
        mapping.acquire()
        assert mapping.recalls() == []
    with pytest.raises(ValueError, match="closed"):
        mapping.recalls()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--free", "some"], "'some' is no size"),
        (["--recall", "5"], "what --free needs"),
        (["--free", "1G", "--recall", "1.5"], "'1.5' is no number of seconds"),
        (["--free", "1G", "--recall", "99999999999"], "'99999999999' is no number of seconds"),
    ],
)
def test_a_daemon_says_what_is_wrong_about_memory_for_others(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bifolio.daemon", "--socket", str(tmp_path / "s"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert sentence in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_daemon_that_has_to_leave_more_free_than_there_is_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    running = Daemon(tmp_path / "run", "--free", "1024T", "--recall", "1")
    monkeypatch.setenv("BIFOLIO_SOCKET", str(running.socket))
    path = tmp_path / "data"
    path.write_bytes(bytes(10))
    try:
        with bifolio.map(path, device="host:0", shared=True) as mapping:
            # It has looked for the first time a moment after it serves.
            with pytest.raises(MemoryError, match="of which others leave 0 now"):
                for _ in range(100):
                    mapping.acquire()
                    mapping.release()
                    mapping.advise("dont_need")
                    time.sleep(0.05)
    finally:
        assert running.end() == 0
