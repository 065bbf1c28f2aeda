"""Sizes as people write them: 64K and 1M are powers of 1024, 8.6GB is a power of 1000."""

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size(text: str) -> int:
    """Bytes of a size such as `4M` or `8.6GB`."""
    number = text.strip().upper().rstrip("KMGB")
    unit = text.strip().upper()[len(number):]
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is no size; write it like 64K, 16M or 8.6GB") from None


def spell(count: int) -> str:
    """The shortest exact spelling: 65536 is 64K."""
    for unit in "GMK":
        if count and count % UNITS[unit] == 0:
            return f"{count // UNITS[unit]}{unit}"
    return str(count)
