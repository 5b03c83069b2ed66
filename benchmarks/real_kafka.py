"""A real Kafka broker to measure against, one for the whole run; each measurement has its own topic.

The number of records that a client reports as sent is compared with the end offsets, and the values with those that
confluent-kafka reads back."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from aioproducer.testing import ApacheKafka
from job import LINES, Job, lines

TIME_OUT = 30  # seconds for each request to the broker
FETCHED = 50_000  # records per call

SETTINGS = {
    "auto.create.topics.enable": False,
    "file.delete.delay.ms": 100,  # the next topic needs the disk space
    "log.retention.check.interval.ms": 3_600_000,
}


class ReadBackError(Exception):
    """The records in the log are not those that were sent."""


class RealKafka:
    """One broker, which runs for the duration of the `with` block."""

    def __init__(self) -> None:
        self._kafka = ApacheKafka(config=SETTINGS, jvm_args=("-Xmx1g",))
        self._made = 0

    def __enter__(self) -> RealKafka:
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._kafka.start())
        except BaseException:
            self.__exit__()
            raise
        self.bootstrap = self._kafka.bootstrap_servers
        self.version = self._kafka.version
        self._admin: AdminClient | None = AdminClient({"bootstrap.servers": self.bootstrap})
        return self

    def __exit__(self, *error: object) -> None:
        self._admin = None  # it would otherwise report that the broker is gone
        self._runner.run(self._kafka.stop())
        self._runner.close()

    @contextlib.contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """Create a fresh topic, which is deleted at the end of the block."""
        self._made += 1
        name = f"measured-{self._made}"
        self._runner.run(self._kafka.create_topic(name, partitions=partitions))
        yield name
        assert self._admin is not None
        self._admin.delete_topics([name], request_timeout=TIME_OUT)[name].result(TIME_OUT)

    def fill(self, topic: str, values: list[bytes]) -> None:
        """Send these values to a topic."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 50})
        for value in values:
            producer.produce(topic, value)
            producer.poll(0)
        if left := producer.flush(TIME_OUT):
            raise ReadBackError(f"{left:,} values were not stored")

    def committed(self, job: Job) -> Counter[tuple[bytes | None, tuple[str, ...]]]:
        """Count how often each value, with the names of its headers, occurs in committed transactions in the job's
        topic."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        found: Counter[tuple[bytes | None, tuple[str, ...]]] = Counter()
        ends = 0
        try:
            consumer.assign(
                [TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in range(job.partitions)]
            )
            while ends < job.partitions:
                for message in consumer.consume(FETCHED, timeout=1):
                    error = message.error()
                    if error is None:
                        found[message.value(), tuple(name for name, _ in message.headers() or ())] += 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ends += 1
                    else:
                        raise ReadBackError(str(error))
        finally:
            consumer.close()
        return found

    def stored_bytes(self, topic: str) -> int:
        """Return the size of a topic's log files: the batches as the client has compressed them."""
        # This opens only the topic's own directories, since those of deleted topics can vanish at any moment.
        logs = self._kafka.directory.glob(f"node-*/data/{topic}-*/*.log")
        return sum(file.stat().st_size for file in logs)

    def check(self, job: Job, sent: int) -> None:
        """Raise ReadBackError unless the log contains exactly the records that were sent."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.queue.backoff.ms": 0,
                "queued.max.messages.kbytes": 65536,
            }
        )
        try:
            partitions = [TopicPartition(job.topic, number) for number in range(job.partitions)]
            ends = [
                consumer.get_watermark_offsets(partition, timeout=TIME_OUT)[1] for partition in partitions
            ]
            if sum(ends) != sent:
                raise ReadBackError(f"the log has {sum(ends):,} records, but {sent:,} were sent")
            consumer.assign([TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in partitions])
            found = read(consumer, sent)
        finally:
            consumer.close()
        compare(found, job, sent)


def read(consumer: Consumer, count: int) -> Counter[bytes | None]:
    """Count how often each value occurs in the log."""
    found: Counter[bytes | None] = Counter()
    while left := count - found.total():
        messages = consumer.consume(min(FETCHED, left), timeout=TIME_OUT)  # waits for all of them
        if not messages:
            raise ReadBackError(f"only {count - left:,} of {count:,} records were read back")
        for message in messages:
            if message.error() is not None:
                raise ReadBackError(str(message.error()))
        found.update(message.value() for message in messages)
    return found


def compare(found: Counter[bytes | None], job: Job, sent: int) -> None:
    """Check that only sent values were read and, if the job sends all values equally often, that their counts agree."""
    values = set(lines(job.value_size))
    if strangers := found.keys() - values:
        raise ReadBackError(f"{len(strangers):,} values were never sent")
    equally = job.kind in ("pipelined", "window", "columns") and sent % LINES == 0
    if equally and (len(found) != LINES or set(found.values()) != {sent // LINES}):
        raise ReadBackError("some values occur more often in the log than others")
