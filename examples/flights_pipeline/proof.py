"""The read-back proof: confluent-kafka reads what is committed; each record is held against what must be there.

`Proof` judges and can be fed by hand; `read_back` feeds it."""

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
"""Findings of each kind that are told in full."""
_SILENCE = 30.0
"""Seconds without news after which reading ends."""
_CHUNK = 2_000
_POLL = 0.2


class Proof:
    """Compares the records of one topic with what must be there, and keeps what does not fit."""

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
        """Bytes of keys and values."""
        self.repeats = 0
        """Records that were there before, where at_least_once allows it."""
        self.kinds: Counter[str] = Counter()
        """How many findings there are of each kind."""
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
                self._find("value", record, "no JSON object with the columns of this topic")
                continue
            if wanted is None:
                self._find("unexpected", record, f"{identity}: there is no such row")
                continue
            self._compare(record, identity, value, wanted)

    def _compare(self, record: ReadRecord, identity: tuple[Any, ...], value: Any, wanted: Record) -> None:
        if value != wanted.value:
            different = [name for name in wanted.value | value if value.get(name) != wanted.value.get(name)]
            self._find("value", record, f"{identity}: another {', '.join(different)} than computed")
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
        """Look for rows that no record was read for; all records have been checked."""
        for identity in self._expected.keys() - self._seen:
            self._count("missing", f"{identity}: not read back")

    def unread(self, why: str) -> None:
        """Note that reading ended before the end."""
        self._count("unread", why)

    def _find(self, kind: str, record: ReadRecord, text: str) -> None:
        self._count(kind, f"partition {record.partition} offset {record.offset}, {text}")

    def _count(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= _SHOWN:
            self.findings.append(f"{kind} in {self._topic.name}: {text}")


def read_back(bootstrap_servers: str, topic: Topic, proof: Proof, progress: Callable[[int], None]) -> None:
    """Read what came to the topic since it was prepared and is committed, into `proof`. Blocks.

    Args:
        bootstrap_servers: of the cluster.
        topic: with the offsets to begin at; the end is where its partitions end now.
        proof: gets the records, and a finding if reading ends early.
        progress: called with the number of records after each chunk; what it raises ends the reading.

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
        raise DemoError(f"reading topic {topic.name} back failed: {error.args[0].str()}") from error
    finally:
        consumer.close()
    proof.finish()


def _read(
    consumer: Consumer, left: set[int], ends: Sequence[int], proof: Proof, progress: Callable[[int], None]
) -> None:
    heard = time.monotonic()
    while left:
        messages = consumer.consume(_CHUNK, timeout=_POLL)
        # The last offset of a transaction is no record: that a partition is read to its end, the consumer says.
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
    """The partition that this message says to be read, or that is read beyond where it ended."""
    number, offset = message.partition(), message.offset()
    if number is None or offset is None:
        return None
    return number if _is_end(message) or offset >= ends[number] else None
