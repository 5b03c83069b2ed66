"""Transactions on a real Kafka, checked with the same assertions as those on the embedded cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from aioproducer.protocol.messages import ApiVersionsRequest
from aioproducer.protocol.recordbatch import BatchHeader, Record
from aioproducer.testing import ApacheKafka, EmbeddedCluster
from aioproducer.testing.embedded.state_topic import partition_for
from aioproducer.testing.embedded.transaction_log import decoded
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata
from tests.support import offset_cells, transaction_cells
from tests.support.apache_clusters import SHARED, running
from tests.support.raw_client import RawClient
from tests.support.raw_transactions import Transactions
from tests.support.transaction_stage import Case, Stage

pytestmark = [pytest.mark.apache, pytest.mark.slow]

CONFIG = {
    # With these settings, no test waits ten seconds for a timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.num.partitions": 5,
    "offsets.topic.num.partitions": 5,
}


@contextmanager
def kafka(level: int, request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """Run a broker with this level of transaction.version."""
    feature = ("--feature", f"transaction.version={level}")
    broker = ApacheKafka(config=CONFIG, jvm_args=SHARED, format_args=feature)
    with running(broker, request=request):
        yield broker


@pytest.fixture(scope="module")
def kafka_v1(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    with kafka(1, request) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafka_v2(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    with kafka(2, request) as broker:
        yield broker


CELLS = [*transaction_cells.CELLS, *offset_cells.CELLS]
each = {level: [case for case in CELLS if level in case.levels] for level in (1, 2)}


@pytest.mark.promise(
    "Test clusters", "the embedded coordinator answers transactions as Kafka does, v1 and v2"
)
@pytest.mark.parametrize("case", each[1], ids=lambda case: case.name)
async def test_v1(case: Case, kafka_v1: ApacheKafka):
    await play(case, 1, kafka_v1)


@pytest.mark.promise(
    "Test clusters", "the embedded coordinator answers transactions as Kafka does, v1 and v2"
)
@pytest.mark.parametrize("case", each[2], ids=lambda case: case.name)
async def test_v2(case: Case, kafka_v2: ApacheKafka):
    await play(case, 2, kafka_v2)


async def play(case: Case, level: int, kafka: ApacheKafka) -> None:
    topic = f"cell-{uuid.uuid4()}"
    await kafka.create_topic(topic, 3)
    async with RawClient(kafka.bootstrap_servers) as client:
        stage = Stage(client, level, topic, f"txn-{topic}", f"group-{topic}")
        await stage.find()
        await case.play(stage)


class Noted(NamedTuple):
    """The contents of a cluster's logs after a transaction, without the parts that differ between runs."""

    states: list[object]
    offsets: list[object]
    markers: list[object]
    features: list[object]


async def noted(stage: Stage, partitions: int) -> Noted:
    """Run two transactions, and return the resulting contents of all logs."""
    topic = stage.topic
    on_states = partition_for(stage.name, partitions)
    on_offsets = partition_for(stage.group, partitions)
    me = await stage.begin(0, 1)
    assert await stage.commit_offset(me, 7, version=5) == 0
    me = await stage.commit(me)
    if stage.tv == 1:
        await stage.added(me, 0)
    assert await stage.write(me, 2 - stage.tv, b"second") == 0
    await stage.abort(me)
    await stage.visible()

    async def read(topic: str, partition: int) -> list[tuple[BatchHeader, list[Record]]]:
        there = Transactions(stage.client, topic=topic)
        return list((await there.fetch(partition, committed=False)).batches())

    states = []
    for _, records in await read("__transaction_state", on_states):
        for record in records:
            assert record.key is not None
            assert record.value is not None
            found = decoded(record.key, record.value)
            if found.transactional_id == stage.name:
                plain = TransactionMetadata("", 0, found.timeout_ms)
                known = {"state", "producer_epoch", "client_version"}
                told = {name: getattr(found, name) for name in known}
                names = [
                    (p.topic.replace(topic, "t").split("-")[0], p.topic == topic) for p in found.partitions
                ]
                ids = [one - me.producer_id if one >= 0 else one for one in (found.previous_producer_id,)]
                states.append(
                    (replace(plain, **told), sorted(names), ids, found.started_ms > 0, record.value[:2])
                )
    offsets = []
    for header, records in await read("__consumer_offsets", on_offsets):
        if header.producer_id == me.producer_id:
            keys = [(record.key or b"")[: -len(topic) - 4][:2] for record in records]
            values = [(record.value or b"")[:14] for record in records]
            offsets.append((header.attributes, header.base_sequence, keys, values))
    markers = [
        (header.attributes, header.base_sequence, header.producer_epoch, records[0].key, records[0].value)
        for header, records in await read(topic, 0)
        if header.is_control
    ]
    features: list[object] = []
    for version in (3, 4):
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        response = await stage.client.ask(request, version)
        features += [
            (one.name, one.min_version, one.max_version)
            for one in response.supported_features
            if one.name == "transaction.version"
        ]
        features += [
            (one.name, one.min_version_level, one.max_version_level)
            for one in response.finalized_features
            if one.name == "transaction.version"
        ]
    return Noted(states, offsets, markers, features)


@pytest.mark.promise(
    "Test clusters", "the embedded coordinator answers transactions as Kafka does, v1 and v2"
)
async def test_v1_logs_and_features_are_kafkas(kafka_v1: ApacheKafka):
    await compare_logs(kafka_v1, 1)


@pytest.mark.promise(
    "Test clusters", "the embedded coordinator answers transactions as Kafka does, v1 and v2"
)
async def test_v2_logs_and_features_are_kafkas(kafka_v2: ApacheKafka):
    await compare_logs(kafka_v2, 2)


async def compare_logs(broker: ApacheKafka, level: int) -> None:
    await broker.create_topic(f"t-{level}", 3)
    found = []
    async with EmbeddedCluster(
        topics={f"t-{level}": 3}, versions="4.3", transaction_version=level
    ) as cluster:
        for servers, partitions in ((broker.bootstrap_servers, 5), (cluster.bootstrap_servers, 50)):
            async with RawClient(servers) as client:
                stage = Stage(client, level, f"t-{level}", f"parity-{level}", f"parity-{level}")
                await stage.find()
                found.append(await noted(stage, partitions))
    kafka, embedded = found
    assert embedded == kafka
    assert len(embedded.states) >= 6
    assert embedded.offsets
    assert len(embedded.markers) == 2
