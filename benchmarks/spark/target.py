"""The targets of measurements, which count the rows that arrive: a broker that only acknowledges, or a real one.

Each measurement has its own topic."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from aioproducer.testing import ApacheKafka
from benchmarks.spark.environment import BUILD

PARTITIONS = 12
TIME_OUT = 60  # seconds for any request to a broker
FETCHED = 50_000  # records per call

BROKER = Path(__file__).parents[1] / "ack_broker.c"
TRANSACTIONS = Path(__file__).with_name("transactions.c")
BEFORE = "static enum outcome answer_api_versions(struct reader *r, int version, bool flexible, struct buffer *out);"
LAST_API = "    {22, 0, 5, 2, answer_init_producer_id},\n"


def source() -> str:
    """Return the source of ack_broker.c with the transactions inserted."""
    text, transactions = BROKER.read_text(), TRANSACTIONS.read_text()
    functions, _, rows = transactions.partition("/* Rows of the table of APIs:\n")
    for place in (BEFORE, LAST_API):
        if text.count(place) != 1:
            raise RuntimeError(f"{BROKER.name} no longer contains this line: {place}")
    return text.replace(BEFORE, functions + BEFORE).replace(LAST_API, LAST_API + rows.partition("*/")[0])


def build() -> Path:
    """Compile the broker if its source has changed since the last time."""
    text, file, program = source(), BUILD / "transaction_broker.c", BUILD / "transaction_broker"
    if not program.exists() or not file.exists() or file.read_text() != text:
        BUILD.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        fresh = program.with_suffix(".new")
        subprocess.run(["cc", "-O2", "-o", str(fresh), str(file)], check=True)
        fresh.replace(program)  # a running broker keeps the old file
    return program


SETTINGS = {"auto.create.topics.enable": False, "file.delete.delay.ms": 100}
"""The settings of the Apache Kafka broker."""


class AckTarget:
    """A broker that acknowledges and counts; `with` starts and stops it."""

    name = "a broker that only acknowledges"

    def __enter__(self) -> AckTarget:
        command = [str(build()), "--partitions", str(PARTITIONS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.bootstrap = f"127.0.0.1:{int(self._line().split()[1])}"
        self._made = 0
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # it ends when its input ends

    def topic(self) -> str:
        """Return the name of a fresh topic, which is created when a client asks for it."""
        self._made += 1
        return f"t{self._made}"

    def written(self, topic: str, *, transactional: bool) -> dict[str, Any]:
        """Return the number of rows that have arrived, and the size of their batches."""
        assert self._process.stdin is not None
        self._process.stdin.write("counts\n")
        self._process.stdin.flush()
        counts = json.loads(self._line())["topics"].get(topic, {"records": [], "batches": []})
        records, batches = sum(counts["records"]), sum(counts["batches"])
        return {"counted": records, "rows_per_batch": records / max(1, batches)}

    def drop(self, topic: str) -> None:
        """Do nothing: there is nothing to drop."""

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the acknowledging broker ended with status {self._process.wait()}")
        return line


class RealTarget:
    """One real Kafka broker; `with` starts and stops it. A topic is deleted once it has been counted."""

    def __enter__(self) -> RealTarget:
        self._kafka = ApacheKafka(config=SETTINGS, jvm_args=("-Xmx1g",))
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._kafka.start())
        except BaseException:
            self._runner.close()
            raise
        self.bootstrap = self._kafka.bootstrap_servers
        self.name = f"Apache Kafka {self._kafka.version}, one broker"
        self._admin: AdminClient | None = AdminClient({"bootstrap.servers": self.bootstrap})
        self._made = 0
        return self

    def __exit__(self, *error: object) -> None:
        self._admin = None
        self._runner.run(self._kafka.stop())
        self._runner.close()

    def topic(self) -> str:
        """Create a fresh topic, and return its name."""
        self._made += 1
        name = f"t{self._made}"
        self._runner.run(self._kafka.create_topic(name, partitions=PARTITIONS))
        return name

    def written(self, topic: str, *, transactional: bool) -> dict[str, Any]:
        """Count the rows in the log: by the end offsets or, if transaction markers are among them, by reading."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            if transactional:
                return {"counted": _read(consumer, partitions)}
            ends = [
                consumer.get_watermark_offsets(partition, timeout=TIME_OUT)[1] for partition in partitions
            ]
            return {"counted": sum(ends)}
        finally:
            consumer.close()

    def drop(self, topic: str) -> None:
        """Delete the topic, since the next one needs the disk space."""
        assert self._admin is not None
        self._admin.delete_topics([topic], request_timeout=TIME_OUT)[topic].result(TIME_OUT)


def _read(consumer: Consumer, partitions: list[TopicPartition]) -> int:
    """Return the number of committed records."""
    consumer.assign([TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in partitions])
    found, ended = 0, set()
    while len(ended) < len(partitions):
        messages = consumer.consume(FETCHED, timeout=1)
        for message in messages:
            if message.error() is None:
                found += 1
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise RuntimeError(str(message.error()))
    return found


TARGETS = {"ack": AckTarget, "real": RealTarget}
