"""The batches of a `records` field, one by one."""

from __future__ import annotations

from collections.abc import Iterator

from aioproducer.errors import ProtocolError
from aioproducer.protocol.compression import Bytes
from aioproducer.protocol.recordbatch import read_header


def split_batches(records: Bytes) -> Iterator[memoryview]:
    """The batches of a `records` field one by one, header included, without copying.

    Raises:
        ProtocolError: a header is malformed, or the last batch is cut off. Raised when that batch's turn
            comes.
    """
    view = memoryview(records)
    at = 0
    while at < len(view):
        end = at + read_header(view, at).size
        if end > len(view):
            raise ProtocolError(f"record batch: {len(view) - at} of {end - at} bytes are there")
        yield view[at:end]
        at = end
