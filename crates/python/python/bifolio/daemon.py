"""One page cache for all processes of a user: `python -m bifolio.daemon`, as `bifolio daemon` does without Python.

It runs in the foreground until it is told to end (SIGTERM, SIGINT). Programs use its cache by `shared=True`:

    tensors = bifolio.safetensors.load_file("model.safetensors", shared=True)
    mapping = bifolio.map("weights.bin", shared=True)
"""

import argparse
import sys

from . import _native

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: use bytes, or a number with K, M, G or T")
    return int(number) * _UNITS[unit]


def _seconds(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: use 0 to {(1 << 32) - 1}")
    return int(text)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bifolio.daemon", description="One page cache for all processes.")
    parser.add_argument(
        "--socket", metavar="PATH", help="where it listens; $BIFOLIO_SOCKET, else bifolio/cache.sock in the runtime folder"
    )
    parser.add_argument(
        "--device", metavar="NAME", action="append", default=[], help='such as "cuda:0", once for each; all GPUs'
    )
    parser.add_argument("--memory", metavar="SIZE", type=_size, default=0, help="bytes of each device, such as 8G")
    parser.add_argument(
        "--idle-exit", metavar="SECONDS", type=_seconds, default=0, help="end when nobody has been connected for so long"
    )
    parser.add_argument(
        "--free", metavar="SIZE", type=_size, default=0, help="bytes of each device that shall be free for other programs"
    )
    parser.add_argument(
        "--recall", metavar="SECONDS", type=_seconds, help="how long programs may take to release what is needed for that; 10"
    )
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.recall is not None and not arguments.free:
        parser.error("--recall says how long programs may take to release what --free needs: give that, too")
    recall = 10 if arguments.recall is None else arguments.recall
    try:
        if arguments.server:
            _native.run_server()
        else:
            program = [sys.executable, "-m", "bifolio.daemon", "--server"]
            given = (arguments.memory, arguments.idle_exit, arguments.free, recall)
            _native.run_daemon(program, arguments.socket, arguments.device, *given)
    except (OSError, ValueError, MemoryError, _native.Error) as error:
        print(f"bifolio: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
