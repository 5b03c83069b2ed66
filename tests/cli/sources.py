"""Sources of bytes for the tests of readers."""

from __future__ import annotations

import os
from pathlib import Path

from aioproducer.cli.source import Source


def source_of(data: bytes, tmp_path: Path, name: str = "input") -> Source:
    """Return a source that reads a new file with this content."""
    path = tmp_path / name
    path.write_bytes(data)
    return Source(str(path), os.open(path, os.O_RDONLY), len(data))
