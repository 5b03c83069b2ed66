"""The topics, leaders and ids of a cluster, without the coordinators and the handlers."""

from __future__ import annotations

import asyncio
import random

import pytest

from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.broker import EmbeddedBroker
from aioproducer.testing.embedded.controller import Controller
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.releases import release_named
from aioproducer.testing.embedded.topics import NO_LEADER
from tests.support.raw_client import RawClient, address


def controller_of(brokers: int) -> Controller:
    """A controller whose brokers have not been started."""

    async def serve(
        broker: EmbeddedBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raise AssertionError("this broker has no connections")

    controller = Controller(LogConfig(), 2, min(3, brokers), lambda: 1.5, random.Random(1))
    controller._brokers += [
        EmbeddedBroker(
            node, "localhost", 9092 + node, release_named("4.1"), serve=serve, on_thaw=lambda: None
        )
        for node in range(brokers)
    ]
    return controller


def test_topics_have_the_default_numbers_unless_others_are_given():
    controller = controller_of(4)

    topics = [controller.create_topic("t"), controller.create_topic("u", 5, replication_factor=1)]

    assert [[part.replicas for part in topic.partitions] for topic in topics] == [
        [(0, 1, 2), (1, 2, 3)],
        [(0,), (1,), (2,), (3,), (0,)],
    ]
    assert [controller.find_topic(None, topic.topic_id) for topic in topics] == topics


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("t", {}, "topic t already exists"),
        ("a/b", {}, "'a/b' can't be created: a name has"),
        (".", {}, "and can't be '.' or '..'"),
        ("with-dot_s", {}, r"collides with topic 'with-dot\.s'"),
        ("u", {"partitions": 0}, "with 0 partitions and 2 replicas"),
        ("u", {"replication_factor": 3}, "with 2 partitions and 3 replicas"),
        ("u", {"config": {"max.message.bytes": "-1"}}, "max.message.bytes"),
    ],
)
def test_a_topic_that_is_invalid_is_not_created(name, settings, problem):
    controller = controller_of(2)
    for other in ("t", "with-dot.s"):
        controller.create_topic(other)

    with pytest.raises(ValueError, match=problem):
        controller.create_topic(name, **settings)

    assert sorted(controller.topics) == ["t", "with-dot.s"]


def test_partitions_of_a_cluster_whose_brokers_are_down_have_no_leader():
    controller = controller_of(2)
    controller.create_topic("t")

    assert controller.alive() == []
    assert controller.leader("t", 0) == NO_LEADER
    with pytest.raises(
        ValueError, match=r"broker 1 can't lead t-0: it is stopped; call start_broker\(1\) first"
    ):
        controller.move_leader("t", 0, 1)


def test_a_broker_without_a_replica_cannot_lead():
    controller = controller_of(3)
    controller.create_topic("t", replication_factor=2)

    with pytest.raises(ValueError, match="no replica of the partition; the replicas are on brokers 0, 1"):
        controller.move_leader("t", 0, 2)
    with pytest.raises(ValueError, match="there is no broker 3; the node ids are 0 to 2"):
        controller.move_leader("t", 0, 3)


async def test_partitions_can_be_added():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.add_partitions("t", 3)
        assert [p.leader_id for p in (await client.metadata("t")).topics[0].partitions] == [0, 1, 0]
        with pytest.raises(ValueError, match="has 3 partitions"):
            cluster.add_partitions("t", 3)


def test_ids_are_new_and_the_time_is_in_milliseconds():
    controller = controller_of(1)

    assert [controller.next_producer_id() for _ in range(3)] == [1000, 1001, 1002]
    assert len({controller.new_uuid() for _ in range(10)}) == 10
    assert controller.new_uuid().version == 4
    assert controller.now_ms() == 1500
