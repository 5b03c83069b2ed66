"""Finds out whether a certificate file or directory has changed since it was read.

The tls and token_providers modules call `stamp` before each connection, in a thread."""

from __future__ import annotations

import os


def stamp(path: str) -> object:
    """Return a value that changes when a file is written or replaced.

    Symbolic links are followed, because Kubernetes uses them to replace files. Writing a file does not change the
    modification time of its directory, so the files in a directory are included. OpenSSL reads no subdirectories.
    """
    try:
        names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    except OSError as error:
        return error.errno
    return _state_of(path), [(name, _state_of(os.path.join(path, name))) for name in names]


def _state_of(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError as error:
        return (error.errno or 0,)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
