"""KvikIO's settings: remembered, so that programs that set and ask for them go on, and without an effect.

The router chooses threads, sizes and paths by what it measures; `bifolio calibrate` is how to tell it more.
"""

import enum
from typing import Any


class CompatMode(enum.IntEnum):
    """KvikIO's compatibility modes."""

    OFF = 0
    ON = 1
    AUTO = 2


class RemoteIOBackend(enum.IntEnum):
    """What reads files of other machines in KvikIO, which are not read here."""

    EASY_THREADPOOL = 0
    MULTI_POLL = 1


class RemoteReactorDispatch(enum.IntEnum):
    """How that divides its work."""

    PER_CHUNK = 0
    PER_PREAD = 1


_settings: dict[str, Any] = {
    "compat_mode": CompatMode.AUTO,
    "num_threads": 1,
    "task_size": 4 << 20,
    "gds_threshold": 16 << 10,
    "bounce_buffer_size": 16 << 20,
    "http_max_attempts": 3,
    "http_status_codes": [429, 500, 502, 503, 504],
    "http_timeout": 60,
    "auto_direct_io_read": False,
    "auto_direct_io_write": True,
    "remote_io_backend": RemoteIOBackend.EASY_THREADPOOL,
    "remote_io_num_reactors": 1,
    "remote_io_reactor_dispatch": RemoteReactorDispatch.PER_CHUNK,
    "remote_io_max_concurrent_requests": 256,
}
_other_names = {"thread_pool_nthreads": "num_threads"}


class ConfigContextManager:
    """Puts settings back when a `with` block ends."""

    def __init__(self, config: dict[str, Any]) -> None:
        changes = {_known(name): value for name, value in config.items()}
        self._before = {name: _settings[name] for name in changes}
        _settings.update(changes)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _settings.update(self._before)


def set(*config: Any) -> ConfigContextManager:  # KvikIO's name.
    """`set({"num_threads": 8, ...})` or `set("num_threads", 8)`."""
    if len(config) == 1 and isinstance(config[0], dict):
        return ConfigContextManager(config[0])
    if len(config) == 2 and isinstance(config[0], str):
        return ConfigContextManager({config[0]: config[1]})
    raise ValueError("set() takes a dict, or a name and a value")


def get(config_name: str) -> Any:
    """What was set, or KvikIO's default."""
    return _settings[_known(config_name)]


def is_compat_mode_preferred() -> bool:
    """Whether files are read without cuFile: always."""
    return True


def _known(name: str) -> str:
    name = _other_names.get(name, name)
    if name not in _settings:
        raise KeyError(f"unknown setting {name!r}: use one of {', '.join(_settings)}")
    return name


# Releases before 25.02 had functions for each setting, as num_threads(), num_threads_reset(8) and
# set_num_threads(8).
def __getattr__(name: str) -> Any:
    if name in _settings:
        return lambda: _settings[name]
    if name.endswith("_reset") and name[:-6] in _settings:
        return lambda value: _settings.update({name[:-6]: value})
    if name.startswith("set_") and name[4:] in _settings:
        return lambda value: ConfigContextManager({name[4:]: value})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
