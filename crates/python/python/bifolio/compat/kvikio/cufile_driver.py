"""The cuFile driver, which is not used: its properties are those of a machine without one."""

from typing import Any

_properties: dict[str, Any] = {
    "is_gds_available": False,
    "major_version": 0,
    "minor_version": 0,
    "allow_compat_mode": True,
    "per_buffer_cache_size": 0,
    "poll_mode": False,
    "poll_thresh_size": 0,
    "max_device_cache_size": 0,
    "max_pinned_memory_size": 0,
}
_settable = {"poll_mode", "poll_thresh_size", "max_device_cache_size", "max_pinned_memory_size"}


def get(config_name: str) -> Any:
    """A property."""
    return _properties[config_name]


def set(*config: Any) -> "_Restored":  # KvikIO's name.
    """Remembers properties, without an effect; a context manager that puts them back."""
    changes = dict(config[0]) if len(config) == 1 else {config[0]: config[1]}
    for name in changes:
        if name not in _settable:
            raise KeyError(f"{name} is no property of the cuFile driver that can be set")
    restored = _Restored({name: _properties[name] for name in changes})
    _properties.update(changes)
    return restored


class _Restored:
    def __init__(self, before: dict[str, Any]) -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _properties.update(self._before)


def libcufile_version() -> tuple[int, int]:
    """There is none: (0, 0)."""
    return (0, 0)


def driver_open() -> None:
    """Without an effect."""


def driver_close() -> None:
    """Without an effect."""


def initialize() -> None:
    """Without an effect."""
