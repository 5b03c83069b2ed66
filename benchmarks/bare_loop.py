"""The steps that no producer in Python can leave out, and no others: a yardstick for the pipelined runs.

For each record: a coroutine call, a list append, an await. For each batch: its records copied into the wire
format, a checksum, one request and one future, which all its records share. There are no retries, no time-outs, no
memory limit, no sequence numbers, no metadata and no metrics, and only the error of a response is read. A batch
that is not full is sent when the loop runs next, so no record waits for a timer."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from typing import Any

from crc32c import crc32c

from job import Job

_REQUEST = struct.Struct(">ihhihhhi")
"""The length, the header of Produce version 8 without a client id, and its fields before the topics."""
_BATCH = struct.Struct(">iiqiibI")
"""The partition, the size of its records, and a batch's fields up to its checksum."""
_SUMMED = struct.Struct(">hiqqqhii")
_LENGTH = struct.Struct(">i")
_ERROR = struct.Struct(">h")
_HEADER = 61
_TIMEOUT_MS = 30_000


def varint(number: int) -> bytes:
    """Return a non-negative number in zigzag encoding."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


class BareLoop(asyncio.Protocol):
    """A connection that sends values of one size to the partitions of one topic in turn."""

    def __init__(self, job: Job) -> None:
        self._loop = asyncio.get_running_loop()
        name = job.topic.encode()
        self._topic = _LENGTH.pack(1) + struct.pack(">h", len(name)) + name + _LENGTH.pack(1)
        self._error_at = 22 + len(name)
        """The offset of the error code in a response, which always has one partition."""
        self._partitions = job.partitions
        self._before: list[bytes] = []
        """The bytes between two values, by the number of records before them."""
        size = _HEADER
        while size < (job.batch_size or 65536):
            delta = varint(len(self._before))
            fields = b"\x00\x00" + delta + b"\x01" + varint(job.value_size)
            length = varint(len(fields) + job.value_size + 1)
            self._before.append((b"\x00" if self._before else b"") + length + fields)
            size += len(length) + len(fields) + job.value_size + 1
        self._before.pop()
        self._full = len(self._before)
        self._values: list[bytes] = []
        self._delivery = self._loop.create_future()
        self._sent: deque[asyncio.Future[None]] = deque()
        self._rest = b""
        self._requests = 0
        self._transport: Any = None
        self._is_closed = self._loop.create_future()

    async def send(self, _topic: str, value: bytes) -> asyncio.Future[None]:
        values = self._values
        values.append(value)
        delivery = self._delivery
        if len(values) == self._full:
            self._flush()
        elif len(values) == 1:
            self._loop.call_soon(self._flush)
        return delivery

    async def send_and_wait(self, topic: str, value: bytes) -> None:
        await (await self.send(topic, value))

    async def ready(self, topic: str) -> None:
        """Return at once, because no metadata is needed."""

    async def close(self) -> None:
        self._transport.close()
        await self._is_closed

    def _flush(self) -> None:
        values, count = self._values, len(self._values)
        if not count:
            return
        pieces: list[bytes] = [b"\x00"] * (2 * count + 1)
        pieces[0:-1:2] = self._before[:count]
        pieces[1::2] = values
        records = b"".join(pieces)
        now = int(time.time() * 1000)
        summed = _SUMMED.pack(0, count - 1, now, now, -1, -1, -1, count)
        size = _HEADER + len(records)
        partition = self._requests % self._partitions
        checksum = crc32c(records, crc32c(summed))
        head = _REQUEST.size - 4 + len(self._topic) + 8
        self._requests += 1
        request = (
            _REQUEST.pack(head + size, 0, 8, self._requests, -1, -1, -1, _TIMEOUT_MS)
            + self._topic
            + _BATCH.pack(partition, size, 0, size - 12, -1, 2, checksum)
            + summed
        )
        self._transport.writelines((request, records))
        self._sent.append(self._delivery)
        self._delivery = self._loop.create_future()
        values.clear()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, end = 0, len(data)
        while end - at >= 4 and (after := at + 4 + _LENGTH.unpack_from(data, at)[0]) <= end:
            if error := _ERROR.unpack_from(data, at + self._error_at)[0]:
                self._sent.popleft().set_exception(RuntimeError(f"the broker answered with error {error}"))
            else:
                self._sent.popleft().set_result(None)
            at = after
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        for delivery in self._sent:
            delivery.set_exception(error or ConnectionResetError("the broker closed the connection"))
        self._is_closed.set_result(None)
