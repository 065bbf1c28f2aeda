"""What a result has to say about the machine it was measured on."""

import ctypes
import os
import platform
import subprocess
from pathlib import Path


def default_device() -> str:
    """`cuda:0` where the driver finds a device, else `host`."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value:
            return "cuda:0"
    except OSError:
        pass
    return "host"


def describe(device: str) -> str:
    """Processor, kernel and device in one line."""
    parts = [_processor(), f"{os.cpu_count()} CPUs", f"kernel {platform.release()}"]
    if device.startswith("cuda"):
        parts.append(_gpu(device))
    return ", ".join(parts)


def file_system(path: Path) -> str:
    """The type of the file system that holds a file, such as ext4."""
    path, best = path.resolve(), ("", "an unknown file system")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if path.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best[1]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu(device: str) -> str:
    command = ["nvidia-smi", f"--id={device.partition(':')[2] or 0}", "--query-gpu=name,driver_version",
               "--format=csv,noheader"]
    try:
        name, driver = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split(",")
        return f"{name.strip()}, driver {driver.strip()}"
    except (OSError, ValueError, subprocess.SubprocessError):
        return device
