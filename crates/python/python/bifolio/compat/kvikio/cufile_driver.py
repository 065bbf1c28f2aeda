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
_settable = ("poll_mode", "poll_thresh_size", "max_device_cache_size", "max_pinned_memory_size")


class DriverProperties:
    """The properties as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _properties[name]
        except KeyError:
            raise AttributeError(f"unknown property {name!r} of the cuFile driver: use one of {', '.join(_properties)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _settable:
            raise AttributeError(f"property {name!r} of the cuFile driver cannot be set")
        _properties[name] = value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_properties]


properties = DriverProperties()


def get(config_name: str) -> Any:
    """A property."""
    if config_name not in _properties:
        raise KeyError(f"unknown property {config_name!r} of the cuFile driver: use one of {', '.join(_properties)}")
    return _properties[config_name]


def set(*config: Any) -> "_Restored":  # KvikIO's name.
    """Remembers properties, without an effect; a context manager that puts them back."""
    if len(config) == 1 and isinstance(config[0], dict):
        changes = config[0]
    elif len(config) == 2 and isinstance(config[0], str):
        changes = {config[0]: config[1]}
    else:
        raise ValueError("set() takes a dict of properties, or a name and a value")
    for name in changes:
        if name not in _settable:
            raise KeyError(f"property {name!r} of the cuFile driver cannot be set: use one of {', '.join(_settable)}")
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
