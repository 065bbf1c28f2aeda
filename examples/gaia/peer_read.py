#!/usr/bin/env python3
"""A CPU reads, through the cache, what a device holds and the page cache does not: figure 5 of the GAIA paper.

A share of the file is on the device. The operating system's page cache is emptied before every run, and the CPU
reads the file by `Mapping.read_into`, in order or at random; `pread` of the same places is measured beside it. With
"changed" pages the device has released changes that the file lacks, so that the device is the only place that has
them; the others are on the disk as well.
"""

import os
from typing import Any

import bifolio
import numpy

import common
from common import Device, Results, check, measure, named

SHARES = (0, 25, 50, 75, 100)


def run(options: Any) -> Results:
    device = Device(options.device)
    total, request = options.size, options.request
    check(total % (2 << 20) == 0, "the size is a multiple of 2M")
    common.budget(options.budget or 4 * total + (64 << 20))
    options.folder.mkdir(parents=True, exist_ok=True)
    path = common.float_file(options.folder / "gaia-peer", total, options.seed)
    results = Results(
        "peer-read",
        f"A CPU reads what {options.device} has cached",
        f"Figure 5 of the GAIA paper: a file of {named(total)}, in requests of {named(request)}, with an empty page cache.",
        ("way", "order", "on the device %", "changed", "seconds", "GB/s"),
        options,
    )
    random = numpy.random.default_rng(options.seed)
    orders = {"in order": numpy.arange(0, total, request), "at random": random.permutation(numpy.arange(0, total, request))}
    buffer = bytearray(request)
    rates: dict[tuple[str, str, int, bool], float] = {}
    try:
        for changed in (False, True):
            for share in SHARES:
                held = total // 100 * share // (2 << 20) * (2 << 20) if share < 100 else total
                for order, offsets in orders.items():
                    for way in ("bifolio", "pread"):
                        digest = [0]
                        state: dict[str, Any] = {}

                        def prepare() -> None:
                            if "mapping" in state:
                                state.pop("mapping").close()
                            mapping = state["mapping"] = bifolio.map(path, writable=True, device=device.name)
                            if held and way == "bifolio":
                                with device.use(), mapping.acquired(0, held) as part:
                                    if changed:
                                        words = device.array(part, "uint32")
                                        words[::1024] ^= 1
                                        device.wait()
                            common.evict(path)
                            digest[0] = 0

                        def by_cache() -> None:
                            for offset in offsets.tolist():
                                state["mapping"].read_into(buffer, offset)
                                digest[0] += int.from_bytes(buffer[:8], "little")

                        def by_pread() -> None:
                            file = os.open(path, os.O_RDONLY)
                            for offset in offsets.tolist():
                                os.preadv(file, [buffer], offset)
                                digest[0] += int.from_bytes(buffer[:8], "little")
                            os.close(file)

                        if way == "pread" and (share or changed):
                            continue
                        times = measure(by_cache if way == "bifolio" else by_pread, options.repetitions, prepare)
                        state.pop("mapping").close()
                        content = numpy.memmap(path, "uint64", "r")
                        check(digest[0] == sum(content[:: request // 8].tolist()), f"{way}, {order}, {share} %")
                        del content
                        rates[way, order, share, changed] = total / times.median / 1e9
                        results.row(way, order, share, "yes" if changed else "no", times.median, total / times.median / 1e9)
    finally:
        path.unlink()
    for order in orders:
        cold, cached = rates["pread", order, 0, False], rates["bifolio", order, 100, False]
        results.figure(f"a CPU's read of what only the device has cached, {order}", "faster than cold storage (the paper: up to 3 "
                       "times, at random)", f"{cached / cold:.2f} times pread of a cold file")
    series = [(f"{order}{', changed' if changed else ''}", [rates["bifolio", order, share, changed] for share in SHARES])
              for order in orders for changed in (False, True)]
    series += [(f"pread, cold, {order}", [rates["pread", order, 0, False]] * len(SHARES)) for order in orders]
    results.plots.append(common.plot.lines(f"A CPU reads what {options.device} has cached", "percent of the file on the device", "GB/s",
                                           [str(share) for share in SHARES], series))
    results.write()
    return results


def main(words: list[str] | None = None) -> Results:
    parser = common.arguments(__doc__ or "", budget="0", size="16M", request="64K")
    return run(parser.parse_args(words))


if __name__ == "__main__":
    main()
