"""Where requests begin: spread over the file without order, the same in every language that is compared."""

MASK = (1 << 64) - 1


def offset_of(number: int, seed: int, slots: int, length: int) -> int:
    """The offset of a request of `length` bytes in a file that holds `slots` of them."""
    return ((seed + number) * 0x9E3779B97F4A7C15 & MASK) % slots * length
