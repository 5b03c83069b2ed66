"""The read-back proof: another client reads the records back, and each is compared with the one that was sent.

`Proof` compares records from any source; `read_back` reads them with confluent-kafka's consumer in assign mode.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaException, Message, TopicPartition

from aioproducer.partitioner import murmur2_partition
from flights import DemoError
from flights.sending import Sent, State
from flights.topic import SILENT, Topic, consumer_settings, end_offsets, start_offsets

_SHOWN = 5
"""How many findings of each kind are reported in full."""
_SILENCE = 30.0
"""Seconds without a record after which reading ends."""
_CHUNK = 2_000
_POLL = 0.2


class ReadRecord(NamedTuple):
    """A record as the consumer received it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Proof:
    """Compares each partition's records, in order, with those sent, and collects the differences."""

    def __init__(self, sent: Sent, partitions: int) -> None:
        self.records = 0
        self.kinds: Counter[str] = Counter()
        """The number of findings of each kind."""
        self.findings: list[str] = []
        self._sent = sent
        self._partitions = partitions
        self._seen = bytearray(len(sent.flights))
        self._partition_of: dict[bytes, int] = {}
        self._last_row: dict[bytes, int] = {}

    @property
    def keys(self) -> int:
        """The number of different keys read so far."""
        return len(self._last_row)

    def check(self, records: Iterable[ReadRecord]) -> None:
        """Compare the next records of one or more partitions."""
        for record in records:
            self.records += 1
            row = self._row_of(record)
            if row is None:
                self._find(
                    "headers", record, "no `row` header that names a flight; is another client writing here?"
                )
                continue
            self._compare_content(row, record)
            self._compare_place(row, record)
            self._compare_order(row, record)
            self._seen[row] = 1

    def finish(self) -> None:
        """Find delivered flights without a record. Called after all records were checked."""
        for row, state in enumerate(self._sent.states):
            if state == State.DELIVERED and not self._seen[row]:
                self._count(
                    "missing",
                    f"row {row}: acknowledged as offset {self._sent.offsets[row]} of partition "
                    f"{self._sent.partitions[row]}, not read back",
                )

    def unread(self, why: str) -> None:
        """Note that reading stopped before all records were read."""
        self._count("unread", why)

    def _row_of(self, record: ReadRecord) -> int | None:
        for name, value in record.headers:
            if (
                name == "row"
                and value is not None
                and value.isdigit()
                and int(value) < len(self._sent.flights)
            ):
                return int(value)
        return None

    def _compare_content(self, row: int, record: ReadRecord) -> None:
        flight = self._sent.flights[row]
        if record.key != flight.key:
            self._find("key", record, f"row {row}: key {record.key!r}, sent {flight.key!r}")
        if record.value != flight.value:
            self._find("value", record, f"row {row}: the value differs from the one sent")
        if record.headers != flight.headers:
            self._find("headers", record, f"row {row}: headers {record.headers!r}, sent {flight.headers!r}")
        if record.timestamp_ms != flight.timestamp_ms:
            self._find(
                "timestamp", record, f"row {row}: timestamp {record.timestamp_ms}, sent {flight.timestamp_ms}"
            )

    def _compare_place(self, row: int, record: ReadRecord) -> None:
        key = self._sent.flights[row].key
        wanted = self._partition_of.get(key)
        if wanted is None:
            wanted = self._partition_of[key] = murmur2_partition(key, self._partitions)
        if record.partition != wanted:
            self._find("partition", record, f"row {row}: its key belongs to partition {wanted}")
        state = self._sent.states[row]
        if state == State.DELIVERED:
            acknowledged = self._sent.partitions[row], self._sent.offsets[row]
            if (record.partition, record.offset) != acknowledged and not self._seen[row]:
                self._find(
                    "offset",
                    record,
                    "row {}: acknowledged for partition {} offset {}".format(row, *acknowledged),
                )
        elif state != State.UNKNOWN:
            self._find("unexpected", record, f"row {row}: was {State(state).name.lower().replace('_', ' ')}")

    def _compare_order(self, row: int, record: ReadRecord) -> None:
        key = self._sent.flights[row].key
        last = self._last_row.get(key, -1)
        if self._seen[row]:
            self._find("duplicate", record, f"row {row}: read before")
        elif row < last:
            self._find("order", record, f"row {row}: read after row {last} with the same key")
        else:
            self._last_row[key] = row

    def _find(self, kind: str, record: ReadRecord, text: str) -> None:
        self._count(kind, f"partition {record.partition} offset {record.offset}, {text}")

    def _count(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= _SHOWN:
            self.findings.append(f"{kind}: {text}")


def read_back(bootstrap_servers: str, topic: Topic, proof: Proof, progress: Callable[[int], None]) -> None:
    """Read all records written to the topic since it was prepared, and pass them to `proof`. Blocks.

    Args:
        bootstrap_servers: the addresses of the cluster.
        topic: the topic with its start offsets; reading ends at the current end offsets.
        proof: receives the records, and a finding if reading ends early.
        progress: called with the number of records after each chunk; if it raises an exception, reading stops.

    Raises:
        DemoError: the consumer failed.
    """
    ends = end_offsets(bootstrap_servers, topic.name, len(topic.starts))
    consumer = Consumer(consumer_settings(bootstrap_servers), logger=SILENT)
    try:
        _check_retention(consumer, topic)
        consumer.assign(
            [
                TopicPartition(topic.name, number, start)
                for number, (start, end) in enumerate(zip(topic.starts, ends, strict=True))
                if start < end
            ]
        )
        _read(consumer, list(topic.starts), ends, proof, progress)
    except KafkaException as error:
        raise DemoError(f"reading back topic {topic.name} failed: {error.args[0].str()}") from error
    finally:
        consumer.close()
    proof.finish()


def _read(
    consumer: Consumer,
    positions: list[int],
    ends: Sequence[int],
    proof: Proof,
    progress: Callable[[int], None],
) -> None:
    heard = time.monotonic()
    while any(position < end for position, end in zip(positions, ends, strict=True)):
        messages = consumer.consume(_CHUNK, timeout=_POLL)
        records = [record_of(message) for message in messages]
        for record in records:
            positions[record.partition] = record.offset + 1
        # Records that other clients append in the meantime lie beyond the end offsets.
        proof.check(record for record in records if record.offset < ends[record.partition])
        progress(proof.records)
        if records:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENCE:
            proof.unread(f"no record for {_SILENCE:g} s; positions {positions}, ends {list(ends)}")
            return


def record_of(message: Message) -> ReadRecord:
    """Convert a consumer's message to a ReadRecord.

    Raises:
        KafkaException: the message is an error.
    """
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    kind, timestamp_ms = message.timestamp()
    partition, offset = message.partition(), message.offset()
    headers: Any = message.headers()  # a list of pairs; the stub has the type for producers
    assert partition is not None
    assert offset is not None
    return ReadRecord(
        partition,
        offset,
        # With LogAppendTime, the broker has replaced our timestamp.
        timestamp_ms if kind == TIMESTAMP_CREATE_TIME else -1,
        message.key(),
        message.value(),
        tuple(headers or ()),
    )


def _check_retention(consumer: Consumer, topic: Topic) -> None:
    lows = start_offsets(consumer, topic.name, len(topic.starts))
    if any(low > start for low, start in zip(lows, topic.starts, strict=True)):
        raise DemoError(
            f"the cluster has already deleted records of topic {topic.name}: flights of 2013 are older "
            "than its retention.ms allows; let the demo create a topic, or set retention.ms=-1"
        )
