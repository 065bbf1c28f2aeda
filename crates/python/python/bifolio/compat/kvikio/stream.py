"""Registrations of streams, which no path of Bifolio needs: accepted, and without an effect."""


def stream_register(raw_stream: int, flags: int) -> None:
    """Without an effect."""


def stream_deregister(raw_stream: int) -> None:
    """Without an effect."""
