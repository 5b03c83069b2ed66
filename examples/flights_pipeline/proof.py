"""The read-back proof: confluent-kafka reads the committed records, and each is compared with the expected one.

`Proof` compares records from any source; `read_back` reads them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ConsumerError

from aioproducer.partitioner import murmur2_partition
from flights import DemoError
from flights.proof import ReadRecord, record_of
from flights.topic import SILENT, Topic, consumer_settings, end_offsets
from flights_pipeline.expected import Record

_SHOWN = 3
"""How many findings of each kind are reported in full."""
_SILENCE = 30.0
"""Seconds without a message after which reading ends."""
_CHUNK = 2_000
_POLL = 0.2


class Proof:
    """Compares the records of one topic with the expected ones, and collects the differences."""

    def __init__(
        self,
        topic: Topic,
        identity: Sequence[str],
        expected: Mapping[tuple[Any, ...], Record],
        *,
        may_repeat: bool,
    ) -> None:
        self.records = 0
        self.size = 0
        """The total size of keys and values, in bytes."""
        self.repeats = 0
        """The number of repeated records, where at_least_once allows them."""
        self.kinds: Counter[str] = Counter()
        """The number of findings of each kind."""
        self.findings: list[str] = []
        self._topic = topic
        self._identity = identity
        self._expected = expected
        self._may_repeat = may_repeat
        self._seen: set[tuple[Any, ...]] = set()

    def check(self, records: Iterable[ReadRecord]) -> None:
        """Compare the next records."""
        for record in records:
            self.records += 1
            self.size += len(record.key or b"") + len(record.value or b"")
            try:
                value = json.loads(record.value or b"")
                identity = tuple(value[name] for name in self._identity)
                wanted = self._expected.get(identity)
            except (ValueError, TypeError, KeyError):
                self._find("value", record, "not a JSON object with the columns of this topic")
                continue
            if wanted is None:
                self._find("unexpected", record, f"{identity}: no such row is expected")
                continue
            self._compare(record, identity, value, wanted)

    def _compare(self, record: ReadRecord, identity: tuple[Any, ...], value: Any, wanted: Record) -> None:
        if value != wanted.value:
            different = [name for name in wanted.value | value if value.get(name) != wanted.value.get(name)]
            self._find("value", record, f"{identity}: not as computed: {', '.join(different)}")
        if record.key != wanted.key.encode():
            self._find("key", record, f"{identity}: key {record.key!r}, not {wanted.key!r}")
        elif record.partition != murmur2_partition(record.key, len(self._topic.starts)):
            self._find("partition", record, f"{identity}: its key belongs to another partition")
        if wanted.timestamp_ms is not None and record.timestamp_ms not in (wanted.timestamp_ms, -1):
            self._find("timestamp", record, f"{identity}: {record.timestamp_ms}, not {wanted.timestamp_ms}")
        if identity not in self._seen:
            self._seen.add(identity)
        elif self._may_repeat:
            self.repeats += 1
        else:
            self._find("duplicate", record, f"{identity}: read before")

    def finish(self) -> None:
        """Find rows without a record. Called after all records were checked."""
        for identity in self._expected.keys() - self._seen:
            self._count("missing", f"{identity}: not read back")

    def unread(self, why: str) -> None:
        """Note that reading stopped before all records were read."""
        self._count("unread", why)

    def _find(self, kind: str, record: ReadRecord, text: str) -> None:
        self._count(kind, f"partition {record.partition} offset {record.offset}, {text}")

    def _count(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= _SHOWN:
            self.findings.append(f"{kind} in {self._topic.name}: {text}")


def read_back(bootstrap_servers: str, topic: Topic, proof: Proof, progress: Callable[[int], None]) -> None:
    """Read all committed records written to the topic since it was prepared, and pass them to `proof`. Blocks.

    Args:
        bootstrap_servers: the addresses of the cluster.
        topic: the topic with its start offsets; reading ends at the current end offsets.
        proof: receives the records, and a finding if reading ends early.
        progress: called with the number of records after each chunk; if it raises an exception, reading stops.

    Raises:
        DemoError: the consumer failed.
    """
    ends = end_offsets(bootstrap_servers, topic.name, len(topic.starts))
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(consumer_settings(bootstrap_servers) | settings, logger=SILENT)
    try:
        left = {number for number, end in enumerate(ends) if topic.starts[number] < end}
        consumer.assign([TopicPartition(topic.name, number, topic.starts[number]) for number in left])
        _read(consumer, left, ends, proof, progress)
    except KafkaException as error:
        raise DemoError(f"reading back topic {topic.name} failed: {error.args[0].str()}") from error
    finally:
        consumer.close()
    proof.finish()


def _read(
    consumer: Consumer, left: set[int], ends: Sequence[int], proof: Proof, progress: Callable[[int], None]
) -> None:
    heard = time.monotonic()
    while left:
        messages = consumer.consume(_CHUNK, timeout=_POLL)
        # The last offset of a transaction does not belong to a record, so only the consumer's EOF event shows the end.
        left -= {number for message in messages if (number := _ended(message, ends)) is not None}
        records = [record_of(message) for message in messages if not _is_end(message)]
        proof.check(record for record in records if record.offset < ends[record.partition])
        progress(proof.records)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENCE:
            proof.unread(
                f"no record for {_SILENCE:g} s; partitions {sorted(left)} were not read to their ends"
            )
            return


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == ConsumerError._PARTITION_EOF


def _ended(message: Message, ends: Sequence[int]) -> int | None:
    """Return the partition of a message that is an EOF event or lies beyond the end, otherwise None."""
    number, offset = message.partition(), message.offset()
    if number is None or offset is None:
        return None
    return number if _is_end(message) or offset >= ends[number] else None
