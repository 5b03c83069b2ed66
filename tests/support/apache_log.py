"""The log of a real Kafka cluster, read by confluent-kafka, aiokafka and Kafka's own DumpLogSegments.

`read_thrice` compares the three. It also checks what only the tool shows: the checksum and codec of each batch, and
that the sequence numbers of each producer have no gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from aioproducer.testing import ApacheKafka
from tests.support.read_back import Log, LogRecord, read_back


class DumpedRecord(NamedTuple):
    """A record as DumpLogSegments shows it: sizes instead of bytes."""

    offset: int
    timestamp: int
    key_size: int
    """-1 for null, as in value_size."""
    value_size: int
    sequence: int
    header_keys: str
    """Joined by commas."""


class DumpedBatch(NamedTuple):
    """A batch as DumpLogSegments shows it."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    codec: str
    crc: int
    records: list[DumpedRecord]


class Found(NamedTuple):
    """The content of a topic, on which all three readers agree."""

    log: Log
    batches: dict[int, list[DumpedBatch]]
    """The batches by partition."""

    @property
    def codecs(self) -> set[str]:
        """The codecs of all batches: "none", "gzip", "snappy", "lz4", "zstd"."""
        return {batch.codec for batches in self.batches.values() for batch in batches}

    @property
    def producers(self) -> set[tuple[int, int]]:
        """The producer ids and epochs of all batches."""
        return {
            (batch.producer_id, batch.producer_epoch)
            for batches in self.batches.values()
            for batch in batches
        }


async def read_thrice(
    kafka: ApacheKafka,
    topic: str,
    *,
    until: Mapping[int, int] | None = None,
    node_id: int = 0,
    any_first_sequence: bool = False,
) -> Found:
    """Read a whole topic with both clients and, in the log directory of one broker, with the tool.

    Args:
        kafka: a cluster whose CLIENT listener is PLAINTEXT.
        topic: must exist.
        until: see read_back.
        node_id: the broker whose log is dumped; it must have all partitions.
        any_first_sequence: allow any sequence number in a producer's first batch, not only 0.
    """
    log = await read_back(kafka.bootstrap_servers, topic, until=until)
    with_aiokafka = await read_with_aiokafka(kafka.bootstrap_servers, topic, ends_of(log))
    assert with_aiokafka == log, "aiokafka and confluent-kafka read different records"
    batches = await dump(kafka, topic, log, node_id)
    for partition, records in log.items():
        dumped = [record for batch in batches[partition] for record in batch.records]
        assert len(dumped) == len(records), f"partition {partition} of {topic}"
        for shown, record in zip(dumped, records, strict=True):
            assert_same(shown, record)
        assert_sequences_continue(batches[partition], any_first_sequence)
    return Found(log, batches)


def ends_of(log: Log) -> dict[int, int]:
    """The offset after the last record of each partition."""
    return {partition: records[-1].offset + 1 if records else 0 for partition, records in log.items()}


async def read_with_aiokafka(servers: str, topic: str, ends: Mapping[int, int]) -> Log:
    """Read partitions from the beginning to the given offsets, with aiokafka."""
    log: Log = {partition: [] for partition in ends}
    unfinished = {partition for partition, end in ends.items() if end}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        retry_backoff_ms=50,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition) for partition in unfinished])
        while unfinished:
            found = await consumer.getmany(timeout_ms=60_000)
            assert found, f"partitions {sorted(unfinished)} of {topic} not read in 60 s"
            for place, messages in found.items():
                log[place.partition] += [
                    LogRecord(
                        message.partition,
                        message.offset,
                        message.timestamp,
                        message.timestamp_type,
                        message.key,
                        message.value,
                        tuple(message.headers),
                    )
                    for message in messages
                    if message.offset < ends[place.partition]
                ]
                if messages[-1].offset + 1 >= ends[place.partition]:
                    unfinished.discard(place.partition)
        return log
    finally:
        await consumer.stop()


async def dump(
    kafka: ApacheKafka, topic: str, partitions: Iterable[int], node_id: int = 0
) -> dict[int, list[DumpedBatch]]:
    """Dump the log of one broker with Kafka's own tool, which decompresses and checks every batch."""
    directory = kafka.directory / f"node-{node_id}" / "data"
    segments = [
        segment
        for partition in partitions
        for segment in sorted((directory / f"{topic}-{partition}").glob("*.log"))
    ]
    package = "kafka.tools" if kafka.version.startswith("3.") else "org.apache.kafka.tools"
    printed = await kafka.run_tool(
        f"{package}.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, segments))
    )
    return parsed(printed)


_SEGMENT = re.compile(r"Dumping .*-(\d+)/\d+\.log")
_BATCH = re.compile(
    r"baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<count>\d+) "
    r"baseSequence: (?P<base_sequence>-?\d+) lastSequence: (?P<last_sequence>-?\d+) "
    r"producerId: (?P<producer_id>-?\d+) producerEpoch: (?P<producer_epoch>-?\d+) "
    r"partitionLeaderEpoch: -?\d+ isTransactional: (?P<is_transactional>\w+) isControl: (?P<is_control>\w+) "
    r"deleteHorizonMs: \S+ position: \d+ (?:Create|LogAppend)Time: -?\d+ size: \d+ magic: 2 "
    r"compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: true"
)
_RECORD = re.compile(
    r"\| offset: (\d+) (?:Create|LogAppend)Time: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) "
    r"sequence: (-?\d+) headerKeys: \[(.*)\]"
)


def parsed(printed: str) -> dict[int, list[DumpedBatch]]:
    """Parse the batches that the tool printed. Any other line, e.g. about an invalid batch or a gap between offsets,
    fails the test."""
    batches: dict[int, list[DumpedBatch]] = {}
    partition = -1
    for line in printed.splitlines():
        if segment := _SEGMENT.fullmatch(line):
            partition = int(segment[1])
            batches.setdefault(partition, [])
        elif batch := _BATCH.fullmatch(line):
            texts = batch.groupdict()
            codec = texts.pop("codec")
            flags = {name: texts.pop(name) == "true" for name in ("is_transactional", "is_control")}
            numbers = {name: int(text) for name, text in texts.items()}
            batches[partition].append(DumpedBatch(**numbers, **flags, codec=codec.lower(), records=[]))
        elif record := _RECORD.fullmatch(line):
            *numbers, keys = record.groups()
            batches[partition][-1].records.append(DumpedRecord(*map(int, numbers), keys))
        else:
            assert not line or line.startswith("Log starting offset: "), (
                f"unexpected line of the tool: {line}"
            )
    for found in batches.values():
        for batch in found:
            assert batch.count == len(batch.records) == batch.last_offset - batch.base_offset + 1, batch
    return batches


def assert_same(shown: DumpedRecord, record: LogRecord) -> None:
    """Assert that the tool shows the record that a client has read."""
    expected = DumpedRecord(
        record.offset,
        record.timestamp,
        -1 if record.key is None else len(record.key),
        -1 if record.value is None else len(record.value),
        shown.sequence,
        ",".join(name for name, _ in record.headers),
    )
    assert shown == expected


def assert_sequences_continue(batches: Iterable[DumpedBatch], any_first: bool = False) -> None:
    """Assert that the sequence numbers of each producer id start at 0 in each epoch and have no gaps."""
    following: dict[tuple[int, int], int] = {}
    for batch in batches:
        numbers = [record.sequence for record in batch.records]
        if batch.producer_id < 0:
            assert (batch.base_sequence, batch.producer_epoch) == (-1, -1)
            continue
        if batch.is_control:
            continue
        unknown = batch.base_sequence if any_first else 0
        first = following.get((batch.producer_id, batch.producer_epoch), unknown)
        assert numbers == list(range(first, first + batch.count)), batch
        assert (batch.base_sequence, batch.last_sequence) == (first, first + batch.count - 1)
        following[batch.producer_id, batch.producer_epoch] = first + batch.count
