"""Registrations of memory, which no path of Bifolio needs: accepted, and without an effect."""

from typing import Any


def memory_register(buf: Any) -> None:
    """Without an effect."""


def memory_deregister(buf: Any) -> None:
    """Without an effect."""


def bounce_buffer_free() -> int:
    """Staging memory is bounded and kept: 0 bytes are freed."""
    return 0
