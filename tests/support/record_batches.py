"""Splits a `records` field into its batches."""

from __future__ import annotations

from collections.abc import Iterator

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import Bytes
from aioproducer.protocol.recordbatch import read_header


def split_batches(records: Bytes) -> Iterator[memoryview]:
    """Yield the batches of a `records` field with their headers, without copying.

    Raises:
        ProtocolError: a header is malformed, or the last batch is cut off. Raised after the batches before it.
    """
    view = memoryview(records)
    at = 0
    while at < len(view):
        end = at + read_header(view, at).size
        if end > len(view):
            raise ProtocolError(f"record batch: only {len(view) - at} of {end - at} bytes are present")
        yield view[at:end]
        at = end
