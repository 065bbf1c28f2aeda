"""The example of `examples/weights_sync`, on hosts and small: its servers check every word, and it what was moved."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need_module

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/weights_sync/weights_sync.py"


@pytest.mark.parametrize("trainer", ["host:0", "host:1"])
def test_servers_see_one_version_and_fetch_what_has_changed(trainer: str, folder: Path) -> None:
    need_module("numpy")
    words = ["--trainer", trainer, "--size", "8M", "--steps", "8", "--pause", "0.01", "--folder", str(folder)]
    done = subprocess.run([sys.executable, str(EXAMPLE), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "128 pages of 64 KiB, 12 of them trained; 8 versions, 2 servers" in done.stdout
    servers = re.findall(r"server \d: (\d+) tokens, (\d+) versions", done.stdout)
    assert len(servers) == 2 and all(int(versions) >= 1 for _, versions in servers), done.stdout
    assert not list(folder.glob("weights-sync-*")), "it leaves its files behind"
