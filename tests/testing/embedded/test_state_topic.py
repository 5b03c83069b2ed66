"""Internal topics whose leaders are coordinators: the partition of a key, and the brokers that have read its log."""

from __future__ import annotations

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.batches import encode_batch
from aioproducer.testing.embedded.state_topic import StateTopic, partition_for
from aioproducer.testing.embedded.topics import Partition
from aioproducer.testing.embedded.transaction_metadata import TransactionRefused
from tests.support.raw_client import NOW


@pytest.mark.parametrize(
    ("key", "partition"),
    # The hash codes are 0, 97, 99162322, -862545276 and the smallest int, which Kafka replaces with 0.
    [("", 0), ("a", 47), ("hello", 22), ("Hello World", 26), ("polygenelubricants", 0)],
)
def test_the_partition_of_a_key_follows_from_javas_hash_code(key, partition):
    assert partition_for(key, 50) == partition


def counted(partition: Partition) -> int:
    """A state for tests: the number of records in the log when it was read."""
    return len(partition.log.records())


def state_topic(cluster: EmbeddedCluster) -> StateTopic[int]:
    return StateTopic(cluster, "__transaction_state", 5, counted, min_insync_replicas=2)


@pytest.mark.parametrize(("brokers", "replicas", "needed"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (4, 3, 2)])
async def test_the_topic_has_three_replicas_if_there_are_three_brokers(brokers, replicas, needed):
    async with EmbeddedCluster(brokers) as cluster:
        states = state_topic(cluster)
        assert not states.exists

        partition = states.partition_of("a")

        assert states.exists
        assert len(states.partitions()) == 5
        assert (len(partition.replicas), partition.effective_min_isr) == (replicas, needed)


async def test_only_the_leader_has_the_state_and_a_new_leader_reads_the_log_again():
    async with EmbeddedCluster(3) as cluster:
        states = state_topic(cluster)
        partition = states.partition_of("a")
        old = states.leader("a")
        assert states.state_at(old, "a") == 0
        states.append(partition, encode_batch([(b"k", b"v")], NOW))
        assert states.state_at(old, "a") == 0, "the log was read again"

        new = (old + 1) % 3
        cluster.move_leader(states.name, partition.index, new)

        with pytest.raises(TransactionRefused, match="NOT_COORDINATOR"):
            states.state_at(old, "a")
        assert states.state_at(new, "a") == 1
        assert dict(states.all_loaded())[partition] == 1


async def test_while_loading_is_held_old_leaders_still_have_the_state_but_new_ones_do_not():
    async with EmbeddedCluster(3) as cluster:
        states = state_topic(cluster)
        partition, node = states.partition_of("a"), states.leader("a")
        assert states.state_at(node, "a") == 0
        states.hold_loading()
        assert states.state_at(node, "a") == 0

        cluster.move_leader(states.name, partition.index, node)  # the same broker, in a new epoch
        with pytest.raises(TransactionRefused) as caught:
            states.state_at(node, "a")
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        states.release_loading()
        assert states.state_at(node, "a") == 0


async def test_nothing_is_written_with_too_few_replicas():
    async with EmbeddedCluster(3) as cluster:
        states = state_topic(cluster)
        partition = states.partition_of("a")
        partition.set_isr([])

        with pytest.raises(TransactionRefused) as caught:
            states.append(partition, encode_batch([(b"k", b"v")], NOW))

        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert partition.log.end_offset == 0
