"""The cluster as a value: merging responses, keeping leader epochs, applying hints."""

from __future__ import annotations

import gc
import tracemalloc
from uuid import UUID

import pytest

from aioproducer.cluster import Cluster, LeaderHint, PartitionInfo
from aioproducer.errors import ProtocolError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import MetadataResponse, ProduceResponse
from aioproducer.types import Node
from tests.support.merging import merged

OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
Broker = MetadataResponse.MetadataResponseBroker
Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition


def partition(index: int = 0, leader: int = 1, epoch: int = 5, error: int = 0) -> Partition:
    return Partition(
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        error_code=error,
        replica_nodes=[1, 2],
        isr_nodes=[1],
        offline_replicas=[2],
    )


def topic(*partitions: Partition, name: str = "t", topic_id: UUID = OLD_ID, error: int = 0) -> Topic:
    return Topic(name=name, topic_id=topic_id, partitions=list(partitions), error_code=error)


def response(
    *topics: Topic, nodes: tuple[int, ...] = (1, 2), cluster_id: str | None = "c"
) -> MetadataResponse:
    brokers = [Broker(node_id=node, host=f"b{node}", port=9092, rack="r") for node in nodes]
    return MetadataResponse(brokers=brokers, controller_id=1, cluster_id=cluster_id, topics=list(topics))


def known(*topics: Topic, **keywords: object) -> Cluster:
    return merged(Cluster.empty(), response(*topics, **keywords), [one.name for one in topics])


def leader_of(cluster: Cluster, index: int = 0) -> tuple[int, int]:
    info = cluster.topics["t"].partitions[index]
    return info.leader, info.leader_epoch


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "leader, leader epoch, replicas and ISR are kept, and given by `partition_info`",
)
def test_an_answer_becomes_nodes_topics_and_partitions():
    cluster = known(topic(partition(0), partition(1, leader=2)))

    assert cluster.nodes == {1: Node(1, "b1", 9092, "r"), 2: Node(2, "b2", 9092, "r")}
    assert (cluster.controller_id, cluster.cluster_id) == (1, "c")
    assert cluster.topic("t").topic_id == OLD_ID
    assert cluster.partition("t", 0) == PartitionInfo("t", 0, 1, 5, (1, 2), (1,), (2,), 0)
    assert cluster.partition("t", 1).leader == 2
    assert cluster.partition("t", 2) is None
    assert cluster.partition("other", 0) is None


def test_the_cluster_id_is_escaped_and_shortened():
    first = known(topic(partition()), cluster_id="c\x1b[31m\n")

    assert first.cluster_id == r"c\x1b[31m\x0a"
    assert merged(first, response(topic(partition()), cluster_id="c\x1b[31m\n"), ["t"]) is first
    assert merged(first, response(topic(partition()), cluster_id=None), ["t"]) is first
    assert len(known(topic(partition()), cluster_id="c" * 30_000).cluster_id) == 1024
    assert known(topic(partition()), cluster_id=None).cluster_id is None


def test_partitions_are_in_order_whatever_order_the_answer_has():
    cluster = known(topic(partition(2), partition(0), partition(1)))

    assert [info.partition for info in cluster.topics["t"].partitions] == [0, 1, 2]


@pytest.mark.parametrize("numbers", [(-1, 0), (-9, 0)])
def test_a_negative_partition_is_ignored(numbers):
    before = known(topic(partition(0), partition(1)))

    after = merged(before, response(topic(*map(partition, numbers))), ["t"])

    assert after.topics["t"].error == ErrorCode.LEADER_NOT_AVAILABLE
    assert after.topics["t"].partitions is before.topics["t"].partitions


def test_partitions_that_did_not_change_are_kept():
    before = known(topic(partition(0), partition(1)))

    after = merged(before, response(topic(partition(0), partition(1, epoch=6))), ["t"])

    assert after.partition("t", 0) is before.partition("t", 0)
    assert after.partition("t", 1).leader_epoch == 6


def test_between_two_steps_at_most_one_partition_is_merged():
    before = known(topic(*map(partition, range(50))))
    answer = response(topic(*(partition(number, epoch=6) for number in range(50))))

    steps = sum(1 for _ in before.merging(answer, ["t"]))

    assert steps > 50


def test_available_partitions_are_those_with_a_leader():
    cluster = known(topic(partition(0), partition(1, leader=-1), partition(2, leader=2)))

    assert cluster.topics["t"].available == [0, 2]


def test_topics_that_were_not_requested_stay():
    before = known(topic(partition()), topic(partition(), name="u"))

    after = merged(before, response(topic(partition(epoch=6))), ["t"])

    assert leader_of(after) == (1, 6)
    assert after.topics["u"] is before.topics["u"]


def test_topics_that_were_not_requested_are_not_added():
    cluster = merged(Cluster.empty(), response(topic(partition()), topic(partition(), name="x")), ["t"])

    assert list(cluster.topics) == ["t"]


def test_a_topic_missing_from_the_answer_is_unknown():
    cluster = merged(Cluster.empty(), response(), ["t"])

    assert cluster.topic("t") is None
    assert cluster.topics["t"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_answer_without_news_returns_the_same_snapshot():
    before = known(topic(partition()))

    assert merged(before, response(topic(partition())), ["t"]) is before


def test_an_answer_without_brokers_is_refused():
    before = known(topic(partition()))

    with pytest.raises(ProtocolError, match="listed no brokers"):
        merged(before, response(topic(partition()), nodes=()), ["t"])


@pytest.mark.parametrize(
    ("host", "port", "node_id"),
    [
        ("", 9092, 1),
        ("a b", 9092, 1),
        ("user@host", 9092, 1),
        ("host\n", 9092, 1),
        ("x" * 256, 9092, 1),
        ("host", 0, 1),
        ("host", 65536, 1),
        ("host", -1, 1),
        ("host", 9092, -1),
    ],
)
def test_a_broker_with_an_unusable_address_is_ignored(host, port, node_id):
    answer = response(topic(partition()), nodes=(2,))
    answer.brokers.append(Broker(node_id=node_id, host=host, port=port))

    cluster = merged(Cluster.empty(), answer, ["t"])

    assert list(cluster.nodes) == [2]
    assert leader_of(cluster) == (-1, 5)


def test_a_leader_that_is_not_in_the_cluster_counts_as_no_leader():
    cluster = known(topic(partition(leader=9)))

    assert leader_of(cluster) == (-1, 5)


def test_a_topic_without_partitions_waits_for_its_leaders():
    cluster = known(topic())

    assert cluster.topic("t") is None
    assert cluster.topics["t"].error == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("indexes", [(0, 2), (1, 2), (0, 0), (0, 2**31 - 1), (-1, 0)])
def test_partitions_with_gaps_or_repetitions_are_ignored(indexes):
    cluster = known(topic(*map(partition, indexes)))

    assert cluster.topic("t") is None
    assert cluster.topics["t"].partitions == ()


@pytest.mark.promise("KIPs", "KIP-320: leader epochs in metadata")
def test_a_partition_without_leader_keeps_its_epoch():
    cluster = known(topic(partition(leader=-1, error=ErrorCode.LEADER_NOT_AVAILABLE)))

    assert leader_of(cluster) == (-1, 5)
    assert cluster.topic("t") is not None


@pytest.mark.promise("Accumulator, sender, connections", "leader epochs never go backwards")
@pytest.mark.promise("KIPs", "KIP-320: leader epochs in metadata")
def test_leader_epochs_never_go_backwards():
    before = known(topic(partition(leader=1, epoch=5)))

    stale = merged(before, response(topic(partition(leader=2, epoch=4))), ["t"])
    newer = merged(before, response(topic(partition(leader=2, epoch=6))), ["t"])

    assert leader_of(stale) == (1, 5)
    assert leader_of(newer) == (2, 6)


@pytest.mark.promise("KIPs", "KIP-320: leader epochs in metadata")
def test_an_answer_without_epoch_is_accepted_and_the_known_epoch_stays():
    before = known(topic(partition(leader=1, epoch=5)))

    after = merged(before, response(topic(partition(leader=2, epoch=-1))), ["t"])

    assert leader_of(after) == (2, 5)


@pytest.mark.promise("Accumulator, sender, connections", "topic ids reveal a topic that was re-created")
@pytest.mark.promise("KIPs", "KIP-516: topic ids")
def test_a_new_topic_id_resets_epochs_and_partitions():
    before = known(topic(partition(0), partition(1)))

    after = merged(before, response(topic(partition(0, leader=2, epoch=0), topic_id=NEW_ID)), ["t"])

    assert leader_of(after) == (2, 0)
    assert len(after.topics["t"].partitions) == 1


def test_an_answer_of_an_older_broker_does_not_remove_the_topic_id():
    before = known(topic(partition()))

    after = merged(before, response(topic(partition(epoch=6), topic_id=UUID(int=0))), ["t"])

    assert after.topics["t"].topic_id == OLD_ID
    assert leader_of(after) == (1, 6)


def test_partitions_of_the_same_topic_are_never_removed():
    before = known(topic(partition(0), partition(1)))

    fewer = merged(before, response(topic(partition(0))), ["t"])
    more = merged(before, response(topic(partition(0), partition(1), partition(2))), ["t"])

    assert len(fewer.topics["t"].partitions) == 2
    assert len(more.topics["t"].partitions) == 3


def test_a_topic_with_an_error_is_not_usable_but_keeps_its_epochs():
    before = known(topic(partition(epoch=5)))

    gone = merged(before, response(topic(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), ["t"])
    stale = merged(gone, response(topic(partition(leader=2, epoch=4))), ["t"])

    assert gone.topic("t") is None
    assert gone.partition("t", 0) is None
    assert leader_of(stale) == (1, 5)


def test_a_broker_that_left_the_cluster_leads_no_partition():
    before = known(topic(partition()), topic(partition(leader=2), name="u"))

    after = merged(before, response(nodes=(2,)), [])

    assert leader_of(after) == (-1, 5)
    assert after.topics["u"] is before.topics["u"]


@pytest.mark.promise("Accumulator, sender, connections", "leader epochs never go backwards")
def test_a_stale_answer_does_not_bring_back_a_leader_that_is_gone():
    before = known(topic(partition(leader=1, epoch=5)))

    after = merged(before, response(topic(partition(leader=2, epoch=4)), nodes=(2,)), ["t"])

    assert leader_of(after) == (-1, 5)


NO_ID = UUID(int=0)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "leader epochs go backwards only for a topic without id whose leader is gone or denies leading: it "
    "may have been re-created",
)
def test_without_topic_ids_an_older_epoch_is_better_than_no_leader():
    """The leader epochs of a re-created topic start at 0 again. Before Kafka 2.8, nothing else reveals the change."""
    before = known(topic(partition(leader=1, epoch=5), topic_id=NO_ID))

    stale = merged(before, response(topic(partition(leader=2, epoch=0), topic_id=NO_ID)), ["t"])
    gone = merged(before, response(topic(partition(leader=2, epoch=0), topic_id=NO_ID), nodes=(2,)), ["t"])

    assert leader_of(stale) == (1, 5)
    assert leader_of(gone) == (2, 0)


def test_without_topic_ids_the_epoch_of_a_leader_that_denies_leading_is_forgotten():
    before = known(topic(partition(leader=1, epoch=5), topic_id=NO_ID))
    with_id = known(topic(partition(leader=1, epoch=5)))

    doubted = before.without_epochs([("t", 0)])

    assert leader_of(doubted) == (1, -1)
    assert leader_of(
        merged(doubted, response(topic(partition(leader=2, epoch=0), topic_id=NO_ID)), ["t"])
    ) == (2, 0)
    assert with_id.without_epochs([("t", 0)]) is with_id
    assert before.without_epochs([("t", 1)]) is before
    assert before.without_epochs([("u", 0)]) is before
    assert doubted.without_epochs([("t", 0)]) is doubted


def endpoint(node_id: int, host: str = "new", port: int = 9093) -> ProduceResponse.NodeEndpoint:
    return ProduceResponse.NodeEndpoint(node_id=node_id, host=host, port=port)


@pytest.mark.promise("KIPs", "KIP-951: the new leader in the answer")
def test_a_hint_with_a_newer_epoch_moves_the_leader():
    before = known(topic(partition()))

    after = before.with_leader_hints([LeaderHint("t", 0, 2, 6)], [])

    assert leader_of(after) == (2, 6)
    assert leader_of(before) == (1, 5)


@pytest.mark.promise("KIPs", "KIP-951: the new leader in the answer")
def test_a_hint_may_bring_a_broker_that_was_not_known():
    after = known(topic(partition())).with_leader_hints(
        [LeaderHint("t", 0, 7, 6)], [endpoint(3), endpoint(7)]
    )

    assert leader_of(after) == (7, 6)
    assert after.nodes[7] == Node(7, "new", 9093)
    assert 3 not in after.nodes


def test_only_the_endpoints_that_hints_name_are_kept_in_memory():
    before = known(topic(partition()))
    endpoints = (endpoint(number) for number in range(3, 10_000))

    tracemalloc.start()
    after = before.with_leader_hints([LeaderHint("t", 0, 7, 6)], endpoints)
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert leader_of(after) == (7, 6)
    assert grown < 100_000


@pytest.mark.parametrize(
    ("name", "index", "leader", "epoch", "endpoints"),
    [
        ("t", 0, 2, 5, []),
        ("t", 0, 2, 4, []),
        ("t", 0, -1, 6, []),
        ("t", 0, 9, 6, []),
        ("t", 0, 9, 6, [endpoint(9, host="")]),
        ("t", 0, 9, 6, [endpoint(9, port=0)]),
        ("t", 1, 2, 6, []),
        ("t", -1, 2, 6, []),
        ("other", 0, 2, 6, []),
    ],
)
def test_a_hint_that_is_old_or_makes_no_sense_changes_nothing(name, index, leader, epoch, endpoints):
    before = known(topic(partition()))

    assert before.with_leader_hints([LeaderHint(name, index, leader, epoch)], endpoints) is before


def test_all_hints_of_a_response_are_applied_to_one_copy_of_each_topic():
    topics = [topic(partition(0), partition(1), name=name) for name in ("t", "u", "v")]
    before = known(*topics)

    after = before.with_leader_hints(
        [
            LeaderHint("t", 0, 2, 6),
            LeaderHint("u", 1, 7, 6),
            LeaderHint("t", 1, 2, 9),
            LeaderHint("t", 1, 1, 8),  # older than the one before it
            LeaderHint("t", 0, 2, 5),  # nothing new
        ],
        [endpoint(7)],
    )

    leaders = {
        name: [(p.leader, p.leader_epoch) for p in info.partitions] for name, info in after.topics.items()
    }
    assert leaders == {"t": [(2, 6), (2, 9)], "u": [(1, 5), (7, 6)], "v": [(1, 5), (1, 5)]}
    assert after.topics["v"] is before.topics["v"]
    assert after.nodes == {**before.nodes, 7: Node(7, "new", 9093)}
    assert [p.leader_epoch for p in before.topics["t"].partitions] == [5, 5]


def test_metadata_older_than_a_hint_does_not_undo_it():
    hinted = known(topic(partition(epoch=5))).with_leader_hints([LeaderHint("t", 0, 2, 6)], [])

    after = merged(hinted, response(topic(partition(leader=1, epoch=5))), ["t"])

    assert leader_of(after) == (2, 6)


def test_without_leaders_only_names_ids_and_counts_are_left():
    after = known(topic(partition(0), partition(1))).without_leaders()

    assert after.nodes == {}
    assert [(p.leader, p.leader_epoch) for p in after.topics["t"].partitions] == [(-1, -1), (-1, -1)]
    assert after.topic("t").topic_id == OLD_ID
    assert after.with_leader_hints([LeaderHint("t", 0, 7, 6)], [endpoint(7)]) is after


def test_after_a_rebootstrap_lower_epochs_are_accepted():
    forgotten = known(topic(partition(epoch=5))).without_leaders()

    after = merged(forgotten, response(topic(partition(leader=2, epoch=1))), ["t"])

    assert leader_of(after) == (2, 1)


def test_forgotten_topics_are_no_longer_known():
    before = known(topic(partition()), topic(partition(), name="u"))

    after = before.without_topics(["t"])

    assert list(after.topics) == ["u"]
    assert after.nodes is before.nodes


def test_partitions_are_hidden_from_the_garbage_collector():
    """Otherwise, a full collection would visit each partition, which takes a second for 800,000 of them."""
    cluster = known(topic(partition(0), partition(1)), topic(partition(0), name="other"))
    led = cluster.with_leader_hints([LeaderHint("t", 0, 2, 7)], [])
    no_id = known(topic(partition(0), topic_id=UUID(int=0)))
    later = [
        led,
        no_id.without_epochs([("t", 0)]),
        cluster.without_leaders(),
        merged(cluster, response(topic(partition(0, epoch=9), partition(1))), ["t"]),
        merged(cluster, response(topic(partition(0, epoch=9)), nodes=(1,)), ["t"]),
    ]

    assert all(known_before is not cluster for known_before in later)
    for snapshot in [cluster, *later]:
        for info in snapshot.topics.values():
            assert not gc.is_tracked(info.partitions)
            assert not any(gc.is_tracked(one) for one in info.partitions)
