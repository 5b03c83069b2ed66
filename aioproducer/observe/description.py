"""The result of `describe()`."""

from __future__ import annotations

import platform
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

LIBRARIES = ("aioproducer", "crc32c", "cramjam", "isal", "backports.zstd", "uvloop")
"""The packages whose versions a bug report needs."""


@dataclass(frozen=True, slots=True)
class Description:
    """The result of `Producer.describe()`. `str()` returns text for a bug report.

    It contains the names of topics, hosts and users, but no secrets and no record keys, values or headers.
    """

    versions: Mapping[str, str]
    """The versions of aioproducer, Python, the operating system, OpenSSL, the event loop and the libraries."""
    settings: Mapping[str, str]
    """The settings that differ from their defaults, each with its origin."""
    state: str
    """The state of the producer: new, running, closing or closed."""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """The cluster id, the age of the metadata in seconds, and the last error of a metadata request."""
    brokers: tuple[Mapping[str, Any], ...] = ()
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each topic in use, how many partitions it has, how many of them have no leader, and how many have fewer
    in-sync replicas than replicas."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """The producer id and epoch, and the state of the transactions."""
    buffer: Mapping[str, int] = field(default_factory=dict)
    """The total and available bytes of the buffer, and how many calls are waiting, how many records are buffered or in
    flight, and how many requests are in flight."""
    oldest_batches: tuple[Mapping[str, Any], ...] = ()
    """The ten batches that have waited the longest for their result."""
    counters: Mapping[str, Any] = field(default_factory=dict)
    """Counts since start(): records by outcome, requests, retries, metadata updates and errors."""
    warnings: tuple[Mapping[str, str], ...] = ()
    """The last 50 log lines at WARNING and above, with their time and level, oldest first."""

    def as_dict(self) -> dict[str, Any]:
        """Return all values as dicts, lists, numbers and strings, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self.as_dict(), ""))


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, tuple) and value:
            yield f"{indent}{name}:"
            for item in value:
                yield f"{indent}  - " + ", ".join(f"{key} {_text(one)}" for key, one in item.items())
        else:
            yield f"{indent}{name}: {_text(value) if value not in ({}, ()) else 'none'}"


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def versions(loop: object | None) -> dict[str, str]:
    """Return the versions of everything that a producer runs on. `loop` is its event loop, or None before start()."""
    found = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        found["python"] += " without the GIL"
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    found["openssl"] = ssl.OPENSSL_VERSION
    found["event loop"] = "none yet" if loop is None else f"{type(loop).__module__}.{type(loop).__qualname__}"
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
