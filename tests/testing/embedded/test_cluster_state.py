"""The state that the handlers of a cluster share: its coordinators, its limits, and the states of its brokers."""

from __future__ import annotations

import pytest

from aioproducer.testing.embedded.broker import BrokerState
from aioproducer.testing.embedded.cluster_state import ClusterState
from tests.support.direct_calls import unstarted_cluster


def state_of(brokers: int = 1) -> ClusterState:
    """The state of a cluster that has topic t and whose brokers are not listening."""
    return unstarted_cluster({"t": 1}, brokers, default_partitions=3)


def test_a_topic_of_a_coordinator_has_its_own_number_of_partitions():
    state = state_of()

    for name in ("u", "__consumer_offsets", "__transaction_state"):
        state.auto_create_topic(name)

    assert {name: len(topic.partitions) for name, topic in state.topics.items()} == {
        "t": 1,
        "u": 3,
        "__consumer_offsets": 50,
        "__transaction_state": 50,
    }


@pytest.mark.parametrize("of_transactions", [False, True])
def test_a_coordinator_is_the_leader_of_the_partition_of_its_key(of_transactions):
    state = state_of(2)
    assert state.coordinator("key", of_transactions=of_transactions) is None, "no broker is running"

    (topic,) = set(state.topics) - {"t"}
    for partition in state.topics[topic].partitions:
        partition.leader = 1

    assert state.coordinator("key", of_transactions=of_transactions) == state.nodes[1]


def test_a_deleted_topic_is_unknown_by_name_and_by_id():
    state = state_of()
    topic = state.topics["t"]

    state.delete_topic("t")

    assert state.find_topic("t", topic.topic_id) is state.find_topic(None, topic.topic_id) is None
    assert topic.partitions[0].is_deleted
    assert state.create_topic("t").topic_id != topic.topic_id
    with pytest.raises(KeyError):
        state.delete_topic("u")


def test_a_quota_is_above_0():
    with pytest.raises(ValueError, match="0"):
        state_of().set_quota(producer_byte_rate=0)


@pytest.mark.parametrize("change", ["crash_broker", "freeze_broker", "thaw_broker"])
def test_a_stopped_broker_can_only_be_started(change):
    state = state_of()

    with pytest.raises(RuntimeError, match="broker 0 is stopped"):
        getattr(state, change)(0)

    assert state.broker(0).state is BrokerState.STOPPED
    assert state.alive() == []
