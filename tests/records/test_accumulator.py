"""The accumulator without a sender and without sockets: the batches that are due, and the order in which they
are drained."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from random import Random

import pytest

from aioproducer.cluster import Cluster
from aioproducer.errors import DeliveryError
from aioproducer.partitioner import UniformSticky
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.records import accumulator
from aioproducer.records import compressor as batch_compressor
from aioproducer.records._record_path import BatchState, Delivery, PartitionQueue, Topic
from aioproducer.records.accumulator import NO_NODE
from aioproducer.records.batch import ProducerBatch
from tests.conftest import MS
from tests.support.accumulator_bench import (
    LONG,
    Bench,
    cluster_of,
    note_answered,
    partitions_of,
    small_bench,
    topic_info,
    turns,
    waiting_sends,
)

# --------------------------------------------------------------------------------------- batches that are due


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by linger")
async def test_an_open_batch_is_due_when_it_has_lingered():
    bench = Bench(linger_ms=50)
    bench.send()

    assert bench.ready() == []
    assert bench.drain() == []
    look_again = bench.accumulator.ready(bench.loop.time())[1]
    batch = bench.topic.queues[0].tail
    assert look_again == pytest.approx(batch.created + 0.05)
    assert bench.ready(later=0.051) == [0]
    assert bench.drain() == [batch]


async def test_without_linger_a_batch_is_due_immediately():
    bench = Bench(linger_ms=0)

    bench.send()

    assert bench.ready() == [0]
    assert len(bench.drain()) == 1


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by its size")
async def test_full_batch_is_due_and_the_open_one_behind_it_is_not():
    bench = Bench(batch_size=1000)

    bench.fill()

    assert bench.ready() == [0]
    [batch] = bench.drain()
    assert batch.state is BatchState.CLOSED
    assert bench.ready() == []
    assert bench.topic.queues[0].tail.state is BatchState.OPEN


async def test_an_open_batch_that_lingered_behind_a_closed_one_is_also_sent():
    bench = Bench(batch_size=1000, linger_ms=50)
    bench.fill()
    tail = bench.topic.queues[0].tail

    assert bench.ready(later=1) == [0]
    [closed] = bench.drain()
    assert closed is not tail
    assert bench.drain() == [tail]


async def test_an_open_batch_that_lingered_while_the_one_before_it_was_in_back_off_is_also_sent():
    bench = Bench(batch_size=1000, linger_ms=50)
    bench.fill()
    tail = bench.topic.queues[0].tail
    bench.ready()
    [closed] = bench.drain()
    closed.mark_sent(0)
    closed.mark_returned()
    bench.accumulator.requeue(closed, bench.loop.time() + 10)
    bench.ready(later=1)
    assert bench.drain(later=1) == []

    bench.ready(later=11)

    assert bench.drain(later=11) == [closed]
    assert bench.drain(later=11) == [tail]


async def test_an_open_batch_that_lingered_behind_a_forgotten_one_is_sent():
    bench = Bench(batch_size=1000, linger_ms=50)
    bench.fill()
    closed, tail = bench.topic.queues[0].batches
    bench.ready(later=1)

    bench.give_up(closed)

    assert bench.ready(later=1) == [0]
    assert bench.drain() == [tail]


async def test_hurried_batch_is_due():
    bench = Bench()
    bench.send()
    batch = bench.topic.queues[0].tail
    bench.wake.counted()

    batch.is_due = True
    bench.accumulator.hurry(batch)

    assert bench.wake.counted() == 1
    assert bench.ready() == [0]
    assert bench.drain() == [batch]


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by exhausted memory")
async def test_everything_is_due_while_a_caller_waits_for_memory():
    bench = Bench([0, 1], buffer_memory=2000, batch_size=1000)
    bench.send(0, b"v" * 900)
    bench.send(1, b"v" * 600)
    assert bench.ready() == []

    async with waiting_sends(bench, [b"v" * 900]):
        assert sorted(bench.ready()) == [0, 1]


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by a flush")
async def test_everything_is_due_while_a_flush_runs_and_it_ends_with_the_last_batch():
    bench = Bench([0, 1])
    bench.send(0)
    bench.send(1)
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    assert sorted(bench.ready()) == [0, 1]
    bench.send(0, b"of the same batch")
    [first], [second] = bench.drain(0), bench.drain(1)
    bench.send(0, b"later")
    bench.succeed(first)
    await turns()
    assert not flush.done()
    bench.give_up(second)
    await turns()

    assert flush.done()
    assert bench.ready() == []  # records appended afterwards linger again


async def test_passes_of_a_flush_do_not_look_at_all_partitions_again(monkeypatch):
    bench = Bench([0] * 100)
    made_ready = []
    make_ready = bench.accumulator._make_ready
    monkeypatch.setattr(
        bench.accumulator,
        "_make_ready",
        lambda queue: (made_ready.append(queue.partition), make_ready(queue)),
    )
    for partition in range(100):
        bench.send(partition)
    flushed = asyncio.ensure_future(bench.accumulator.flush())
    await asyncio.sleep(0)
    while bench.ready():
        bench.succeed(*bench.drain_some(10)[0])
    await asyncio.wait_for(flushed, 1)
    assert sorted(made_ready) == list(range(100))


async def test_during_a_flush_an_open_batch_behind_a_full_one_is_sent_in_the_same_pass():
    bench = Bench(batch_size=1000)
    bench.fill()
    full, tail = bench.topic.queues[0].batches
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()
    bench.ready()

    assert bench.drain() == [full]
    assert bench.drain() == [tail]

    bench.succeed(full, tail)
    await flush


async def test_a_flush_without_batches_ends_immediately():
    await asyncio.wait_for(Bench().accumulator.flush(), 1000 * MS)


async def test_cancelled_flush_changes_nothing():
    bench = Bench()
    bench.send()
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    flush.cancel()
    await asyncio.wait([flush])

    assert bench.ready() == []
    bench.ready(later=LONG)
    bench.succeed(*bench.drain())


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready when its first batch is full, has another behind it, has lingered, or is needed "
    "for memory, flush or close",
)
async def test_everything_is_due_once_the_accumulator_is_closed():
    bench = Bench()
    bench.send()
    bench.wake.counted()

    bench.accumulator.close()

    assert bench.wake.counted() > 0
    assert bench.ready() == [0]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready only if it is not muted, not in back-off, and has a leader that can be sent to",
)
async def test_a_batch_without_a_leader_is_reported_and_sent_to_the_later_leader():
    bench = Bench([NO_NODE], linger_ms=0)
    bench.send()

    assert bench.ready() == [NO_NODE]
    bench.accumulator.update_leaders(cluster_of(topic_info([2])))

    assert bench.ready() == [2]
    assert len(bench.drain(2)) == 1


async def test_batches_follow_their_leader():
    bench = Bench([0, 1], linger_ms=0)
    bench.send(0)
    bench.send(1)

    bench.accumulator.update_leaders(cluster_of(topic_info([1, 0])))

    assert sorted(bench.ready()) == [0, 1]
    assert partitions_of(bench.drain(0)) == [1]
    assert partitions_of(bench.drain(1)) == [0]


async def test_batches_of_a_topic_missing_from_metadata_wait_for_a_leader():
    bench = Bench(linger_ms=0)
    bench.send()

    bench.accumulator.update_leaders(cluster_of())

    assert bench.ready() == [NO_NODE]
    assert bench.accumulator.topics == {}
    bench.accumulator.open_topic(topic_info([1]))
    assert bench.ready() == [1]
    assert len(bench.drain(1)) == 1


async def test_a_topic_that_is_dropped_after_it_had_an_error_is_forgotten():
    bench = Bench(linger_ms=0)

    bench.accumulator.update_leaders(cluster_of(topic_info([0])._replace(error=3)))
    assert "orders" in bench.accumulator.topics
    bench.accumulator.update_leaders(cluster_of())

    assert bench.accumulator.topics == {}


async def test_batches_of_a_dropped_topic_are_sent_when_the_metadata_names_it_again():
    bench = Bench([0, 0], linger_ms=0)
    bench.send(1)
    bench.accumulator.update_leaders(cluster_of())

    bench.accumulator.update_leaders(cluster_of(topic_info([1, 2])))

    assert bench.accumulator.topics == {}
    assert bench.ready() == [2]
    assert partitions_of(bench.drain(2)) == [1]


def two_topics(**settings: object) -> Bench:
    """A bench with a batch in each of two topics, so that updating the leaders can take two steps."""
    bench = Bench(linger_ms=0, **settings)
    bench.accumulator.open_topic(topic_info([0], "second", 2))
    bench.send(0)
    bench.send(0, topic="second")
    return bench


def topics_moved_to(node: int) -> Cluster:
    return cluster_of(topic_info([node]), topic_info([node], "second", 2))


async def test_many_partitions_are_assigned_to_their_leaders_in_steps(monkeypatch):
    monkeypatch.setattr(accumulator, "MOST_ASSIGNED", 1)
    bench = two_topics()

    bench.accumulator.update_leaders(topics_moved_to(1))

    assert [batch.queue.topic for batch in bench.drain(1)] == ["orders"]
    assert bench.drain(0) == []  # "second" may have another leader by now
    assert bench.accumulator.assign_leaders()
    assert [batch.queue.topic for batch in bench.drain(1)] == ["second"]


async def test_a_step_of_assigning_leaders_ends_after_its_number_of_partitions(monkeypatch):
    monkeypatch.setattr(accumulator, "MOST_ASSIGNED", 2)
    bench = Bench()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        bench.accumulator.open_topic(topic_info([0], name))

    bench.accumulator.update_leaders(cluster_of(*(topic_info([1], name) for name in names)))

    def moved() -> int:
        return sum(bench.accumulator.topics[name].queues[0].node_id == 1 for name in names)

    assert moved() == 2
    assert not bench.accumulator.assign_leaders()
    assert moved() == 4
    assert bench.accumulator.assign_leaders()
    assert moved() == 5


async def test_a_topic_whose_leaders_were_not_assigned_yet_is_not_said_to_lack_them(monkeypatch, caplog):
    monkeypatch.setattr(accumulator, "MOST_ASSIGNED", 1)
    bench = two_topics()
    bench.accumulator.update_leaders(topics_moved_to(NO_NODE))
    bench.accumulator.assign_leaders()
    assert bench.accumulator.topics_without_leader() == {"orders", "second"}

    bench.accumulator.update_leaders(topics_moved_to(1))
    bench.accumulator.log_missing_leaders(bench.loop.time())

    assert bench.accumulator.topics_without_leader() == set()
    assert caplog.records == []


async def test_newer_leaders_replace_those_that_were_not_assigned_yet(monkeypatch):
    monkeypatch.setattr(accumulator, "MOST_ASSIGNED", 1)
    bench = two_topics()

    bench.accumulator.update_leaders(topics_moved_to(1))
    bench.accumulator.update_leaders(topics_moved_to(2))
    while not bench.accumulator.assign_leaders():
        pass

    assert sorted(batch.queue.topic for batch in bench.drain(2)) == ["orders", "second"]


async def test_a_topic_dropped_before_its_leaders_were_assigned_waits_for_a_leader(monkeypatch):
    monkeypatch.setattr(accumulator, "MOST_ASSIGNED", 1)
    bench = two_topics()

    bench.accumulator.update_leaders(topics_moved_to(1))
    bench.accumulator.update_leaders(cluster_of())

    assert bench.accumulator.assign_leaders()
    assert bench.ready() == [NO_NODE]
    assert bench.accumulator.topics_without_leader() == {"orders", "second"}


async def test_an_unchanged_topic_costs_nothing_when_the_metadata_changes(monkeypatch):
    bench = Bench()
    info = bench.accumulator._applied_info["orders"]
    assigned = []
    monkeypatch.setattr(bench.accumulator, "_set_leaders", lambda topic, info: assigned.append(topic.name))

    bench.accumulator.update_leaders(cluster_of(info, topic_info([1], "second", 2)))

    assert assigned == []


@pytest.mark.promise(
    "Rules of Kafka's producer", "the sender sleeps until the earliest event that may need it"
)
async def test_the_next_pass_is_at_the_first_end_of_a_linger_back_off_or_deadline():
    bench = Bench([0, 1, 2], linger_ms=5000, delivery_timeout_ms=40_000)
    assert bench.accumulator.ready(bench.loop.time())[1] is None
    bench.send(0)
    now = bench.loop.time()
    batch = bench.topic.queues[0].tail
    assert bench.accumulator.ready(now)[1] == batch.created + 5

    bench.ready(later=5)
    assert bench.accumulator.ready(now + 5)[1] == batch.deadline
    bench.drain()
    batch.mark_sent(0)
    assert bench.accumulator.ready(now + 5)[1] == batch.deadline
    batch.mark_returned()
    bench.accumulator.requeue(batch, now + 7)

    assert bench.accumulator.ready(now + 5) == ([], now + 7)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "the cost of `ready` depends on what there is to send, not on how many partitions exist",
)
async def test_cost_of_ready_does_not_depend_on_idle_partitions(monkeypatch):
    touched = Counter()

    class CountedQueue(PartitionQueue):
        def __getattribute__(self, name: str) -> object:
            touched[super().__getattribute__("partition")] += 1
            return super().__getattribute__(name)

    monkeypatch.setattr(accumulator, "PartitionQueue", CountedQueue)
    bench = Bench([number % 3 for number in range(2000)], batch_size=1000, linger_ms=50)
    # Most partitions had a batch earlier.
    for partition in range(1000):
        bench.send(partition)
    bench.ready(later=1)
    bench.succeed(*(batch for node in range(3) for batch in bench.drain_all(node)))
    bench.send(7)
    bench.send(1500)
    bench.fill(3)
    touched.clear()

    for later in (0, 1, 2):
        bench.ready(later)
    bench.drain(0, later=2)
    bench.drain(1, later=2)
    bench.accumulator._flushing += 1
    bench.ready()

    assert set(touched) <= {3, 7, 1500}
    assert sum(touched.values()) < 100


async def test_ended_batches_are_not_kept_until_their_linger_would_have_ended():
    bench = Bench([0, 1], batch_size=1000)
    bench.send(1)  # lingers for a long time
    bench.fill(0, batches=50)
    bench.ready()
    bench.succeed(*bench.drain_all())
    gc.collect()

    alive = [found for found in gc.get_objects() if isinstance(found, ProducerBatch)]
    alive = [batch for batch in alive if batch.queue in bench.topic.queues]

    assert sum(batch.state is BatchState.DONE for batch in alive) <= 1


# ------------------------------------------------------------------------------------------------------ waking


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "the sender is woken for batches that are new, full or must go, not for every record",
)
async def test_sender_is_woken_for_the_first_open_batch_and_not_for_each_record():
    bench = Bench()
    bench.wake.counted()

    bench.send()
    assert bench.wake.counted() == 1
    for _ in range(100):
        bench.send()
    assert bench.wake.counted() == 0


async def test_the_sender_is_not_woken_for_a_new_batch_whose_linger_ends_later_than_that_of_another():
    bench = Bench([0, 1, 2])
    bench.send(0)
    bench.wake.counted()

    bench.send(1)
    bench.send(2)

    assert bench.wake.counted() == 0
    assert bench.accumulator.ready(bench.loop.time())[1] == bench.topic.queues[0].tail.created + LONG / 1000


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "the sender is woken for batches that are new, full or must go, not for every record",
)
async def test_sender_is_woken_once_for_each_full_batch():
    bench = Bench(batch_size=1000)
    bench.send()
    bench.wake.counted()

    bench.fill(batches=5)

    assert bench.wake.counted() == 5


async def test_sender_is_woken_for_each_batch_without_linger():
    bench = Bench(linger_ms=0)
    bench.wake.counted()

    bench.send()
    bench.send()
    assert bench.wake.counted() == 1
    bench.ready()
    bench.drain()
    bench.send()

    assert bench.wake.counted() == 1


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "the sender is woken for batches that are new, full or must go, not for every record",
)
async def test_the_sender_is_woken_by_a_wait_for_memory_and_by_flush():
    bench = small_bench()
    bench.wake.counted()

    async with waiting_sends(bench, [b"v" * 900]):
        assert bench.wake.counted() > 0
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    assert bench.wake.counted() == 1
    bench.give_up(*list(bench.accumulator.incomplete))
    await flush


async def test_the_sender_is_woken_for_an_immediate_retry_and_sets_its_timer_for_a_later_one():
    bench = Bench(linger_ms=0)
    bench.send()
    [batch] = bench.drain()
    batch.mark_sent(0)
    batch.mark_returned()
    bench.wake.counted()

    bench.accumulator.requeue(batch, bench.loop.time())

    assert bench.wake.counted() == 1
    assert bench.drain() == [batch]


# --------------------------------------------------------------------------------------------------- draining


async def test_drain_takes_one_batch_of_each_partition_at_a_time():
    bench = Bench([0, 0, 0], batch_size=1000)
    for partition in range(3):
        bench.fill(partition, batches=2)
    bench.ready()

    assert partitions_of(bench.drain()) == [0, 1, 2]
    assert partitions_of(bench.drain()) == [0, 1, 2]
    assert bench.drain() == []


@pytest.mark.promise("Accumulator, sender, connections", "each partition has one deque of batches")
async def test_drain_keeps_the_order_of_a_partition():
    bench = Bench(batch_size=1000)
    bench.fill(batches=5)
    bench.ready()

    drained = bench.drain_all()

    assert [batch.order for batch in drained] == sorted(batch.order for batch in drained)
    assert len(drained) == 5


async def test_drain_takes_only_batches_that_are_due_for_its_node():
    bench = Bench([0, 1, 0], linger_ms=0)
    for partition in range(3):
        bench.send(partition)

    assert partitions_of(bench.drain(1)) == [1]
    assert partitions_of(bench.drain(0)) == [0, 2]
    assert bench.drain(2) == []


@pytest.mark.promise(
    "Accumulator, sender, connections", "a request contains several partitions, up to `max_request_size`"
)
async def test_drain_stops_at_max_request_size_and_continues_where_it_stopped():
    bench = Bench([0] * 5, batch_size=1000, max_request_size=2100)
    for partition in range(5):
        bench.fill(partition, batches=2)
    bench.ready()
    requests = []

    while drained := bench.drain():
        assert sum(batch.wire_size for batch in drained) <= 2100
        requests.append(partitions_of(drained))

    assert requests == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


async def test_a_first_batch_above_max_request_size_is_drained_alone():
    bench = Bench([0, 0, 0], batch_size=4000, max_request_size=1500, linger_ms=0)
    bench.accumulator.batch_limit = 4000  # by default the smaller of the two settings
    bench.send(0, b"small")
    for _ in range(3):
        bench.send(1, b"v" * 1000)
    bench.send(2, b"small")

    requests = []
    while drained := bench.drain():
        requests.append((partitions_of(drained), sum(batch.wire_size for batch in drained) > 1500))

    assert requests == [([0], False), ([1], True), ([2], False)]


async def test_blocked_partition_never_stops_its_neighbours():
    bench = Bench([0] * 4, batch_size=1000)
    for partition in range(4):
        bench.fill(partition)
    bench.ready()
    asked = []

    def may_send(queue: PartitionQueue) -> bool:
        asked.append(queue.partition)
        return queue.partition not in (0, 2)

    assert partitions_of(bench.drain(may_send=may_send)) == [1, 3]
    assert asked == [0, 1, 2, 3]
    # The blocked batches are still due; open batches stay open while they are blocked.
    assert partitions_of(bench.drain()) == [0, 2]


async def test_blocked_open_batch_keeps_filling():
    bench = Bench(linger_ms=0)
    bench.send()

    assert bench.drain(may_send=lambda queue: False) == []

    assert bench.topic.queues[0].tail.state is BatchState.OPEN
    bench.send()
    [batch] = bench.drain()
    assert batch.record_count == 2


async def test_a_partition_that_was_held_back_is_drained_after_an_answer():
    bench = Bench(batch_size=1000)
    bench.fill(batches=2)
    bench.ready()
    [first] = bench.drain()
    first.mark_sent(0)
    assert bench.drain(may_send=lambda queue: False) == []
    first.succeed(0, -1, -1)
    bench.accumulator.release(first)

    bench.accumulator.touch(bench.topic.queues[0])

    assert bench.ready() == [0]
    assert len(bench.drain()) == 1


@pytest.mark.promise("Records", "large batches are compressed in a thread")
async def test_a_batch_that_is_being_compressed_waits_but_its_neighbours_do_not():
    bench = Bench([0, 0], batch_size=64 * 1024, compression_type="gzip", linger_ms=0)
    bench.send(0, b"v" * 2 * batch_compressor.SMALL)
    bench.send(1, b"v" * 100)

    assert partitions_of(bench.drain()) == [1]
    assert bench.drain() == []
    bench.wake.counted()
    bench.executor.work()
    await turns()

    assert bench.wake.counted() > 0
    assert bench.ready() == [0]
    [batch] = bench.drain()
    assert bytes(batch.payload) == compressor(Codec.GZIP)(batch.records)


@pytest.mark.promise("Records", "large batches are compressed in a thread")
async def test_a_batch_that_cannot_be_compressed_is_sent_uncompressed(caplog):
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", linger_ms=0)

    def broken(data: object) -> bytes:
        raise ValueError("broken codec")

    bench.accumulator.compressor._compress = broken
    bench.send(0, b"v" * 2 * batch_compressor.SMALL)
    bench.drain()

    bench.executor.work()
    await turns()

    [batch] = bench.drain()
    assert batch.codec is Codec.NONE
    assert "broken codec" in caplog.text


async def test_a_batch_that_expires_while_it_is_compressed_does_not_return_to_its_queue():
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", linger_ms=0)
    bench.send(0, b"v" * 2 * batch_compressor.SMALL)
    bench.drain()
    bench.give_up(*list(bench.accumulator.incomplete))

    bench.executor.work()
    await turns()

    assert bench.ready() == []
    assert bench.drain() == []
    assert bench.memory.available == bench.memory.total


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
@pytest.mark.parametrize("linger_ms", [0, LONG])
async def test_a_batch_ends_with_its_last_record_and_returns_its_memory_immediately(linger_ms):
    bench = Bench(linger_ms=linger_ms)
    late = [bench.send(), bench.send()]
    flushing = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    bench.accumulator.withdraw(late[0], DeliveryError("too late"))
    assert bench.memory.available < bench.memory.total
    bench.accumulator.withdraw(late[1], DeliveryError("too late"))

    assert bench.memory.available == bench.memory.total
    assert not bench.accumulator.incomplete
    await turns()
    assert flushing.done()
    assert [str(delivery.exception()) for delivery in late] == ["too late"] * 2
    kept = bench.send(0, b"kept")
    bench.ready(later=1 + LONG)
    [batch] = bench.drain()
    assert batch is kept.batch


async def test_a_batch_whose_records_all_end_while_it_is_compressed_does_not_return_to_its_queue():
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", linger_ms=0)
    late = bench.send(0, b"v" * 2 * batch_compressor.SMALL)
    bench.drain()
    assert late.batch.is_being_compressed

    bench.accumulator.withdraw(late, DeliveryError("too late"))
    bench.executor.work()
    await turns()

    assert bench.ready() == []
    assert bench.drain() == []
    assert bench.memory.available == bench.memory.total


async def test_batches_behind_one_whose_records_have_all_ended_are_sent():
    bench = Bench(linger_ms=0, batch_size=1)
    late, kept = bench.send(0), bench.send(0, b"kept")

    bench.accumulator.withdraw(late, DeliveryError("too late"))

    assert bench.ready() == [0]
    assert bench.drain() == [kept.batch]


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
async def test_records_that_ended_early_are_left_out_and_a_batch_without_any_is_not_sent():
    bench = Bench([0, 0], linger_ms=0)
    late = [bench.send(0), bench.send(1)]
    kept = bench.send(0, b"kept")
    for delivery in late:
        bench.accumulator.withdraw(delivery, DeliveryError("too late"))

    [batch] = bench.drain()

    assert partitions_of([batch]) == [0]
    assert batch.record_count == 1
    bench.succeed(batch)
    assert (await kept).offset == 0
    assert [delivery.exception() is not None for delivery in late] == [True, True]
    assert bench.memory.available == bench.memory.total
    assert not bench.accumulator.incomplete


def large_batch_of_records_with_timeouts(bench: Bench) -> list[Delivery]:
    """Return a closed batch that a thread has compressed."""
    sent = [bench.send(0, b"%04d" % number * 1024) for number in range(10)]
    assert bench.drain() == []
    assert sent[0].batch.is_being_compressed
    bench.executor.work()
    return sent


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
@pytest.mark.parametrize("level", [1, 9])
async def test_large_batch_that_lost_a_record_is_compressed_again_by_a_thread(level):
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", compression_level=level, linger_ms=0)
    sent = large_batch_of_records_with_timeouts(bench)
    await turns()
    bench.accumulator.withdraw(sent[3], DeliveryError("too late"))
    behind = bench.send(0, b"behind")

    assert bench.drain() == [], "the batch behind it must not overtake it"
    assert sent[0].batch.is_being_compressed
    bench.executor.work()
    await turns()

    batches = bench.drain_all()
    assert batches == [sent[0].batch, behind.batch]
    assert (batches[0].record_count, batches[0].codec) == (9, Codec.GZIP)
    assert bytes(batches[0].payload) == compressor(Codec.GZIP, level)(batches[0].records)


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
async def test_timeouts_cannot_keep_a_batch_in_the_compressing_thread():
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", compression_level=9, linger_ms=0)
    sent = large_batch_of_records_with_timeouts(bench)
    for late in sent[: accumulator.MOST_REBUILDS]:
        await turns()
        bench.accumulator.withdraw(late, DeliveryError("too late"))
        assert bench.drain() == []
        bench.executor.work()
    await turns()
    bench.accumulator.withdraw(sent[accumulator.MOST_REBUILDS], DeliveryError("too late"))

    [batch] = bench.drain()

    assert (batch.record_count, batch.codec) == (9 - accumulator.MOST_REBUILDS, Codec.NONE)
    assert b"0003" not in bytes(batch.payload)
    bench.succeed(batch)
    assert [(await delivery).offset for delivery in sent[accumulator.MOST_REBUILDS + 1 :]] == list(range(6))


async def test_a_small_batch_that_lost_a_record_is_compressed_in_the_loop_like_any_small_one():
    bench = Bench(compression_type="gzip", compression_level=1, batch_size=1000, linger_ms=0)
    sent = [bench.send(0, b"v" * 300) for _ in range(4)]
    closed = sent[0].batch
    assert (closed.record_count, closed.codec) == (2, Codec.GZIP)
    bench.accumulator.withdraw(sent[0], DeliveryError("too late"))

    [batch] = bench.drain()

    assert batch is closed
    assert (batch.record_count, batch.codec) == (1, Codec.GZIP)


async def test_records_that_timed_out_while_their_batch_was_open_are_not_compressed():
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", compression_level=9)
    sent = [bench.send(0, b"%04d" % number * 1024) for number in range(10)]
    bench.accumulator.withdraw(sent[3], DeliveryError("too late"))
    assert bench.ready(later=1 + LONG) == [0]

    assert bench.drain() == []
    bench.executor.work()
    await turns()

    [batch] = bench.drain()
    assert (batch.record_count, batch.codec, batch.rebuilds) == (9, Codec.GZIP, 1)


# --------------------------------------------------------------------------------------------------- retries


@pytest.mark.promise("Accumulator, sender, connections", "each partition has one deque of batches")
async def test_requeued_batches_are_in_the_order_in_which_they_were_opened():
    bench = Bench(batch_size=1000)
    bench.fill(batches=4)
    bench.ready()
    batches = bench.drain_all()
    for batch in batches:
        batch.mark_sent(0)
        batch.mark_returned()

    for batch in (batches[2], batches[0], batches[3], batches[1]):
        bench.accumulator.requeue(batch, bench.loop.time())

    queue = bench.topic.queues[0]
    assert list(queue.batches)[:4] == batches
    assert queue.batches[4] is queue.tail
    assert bench.drain_all() == batches


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready only if it is not muted, not in back-off, and has a leader that can be sent to",
)
async def test_a_partition_in_back_off_is_not_drained_before_its_time():
    bench = Bench([0, 0], linger_ms=0)
    bench.send(0)
    bench.send(1)
    first, second = bench.drain()
    for batch in (first, second):
        batch.mark_sent(0)
        batch.mark_returned()
    now = bench.loop.time()

    bench.accumulator.requeue(first, now + 10)
    bench.accumulator.requeue(second, now)

    assert bench.drain() == [second]
    assert bench.accumulator.ready(now) == ([], now + 10)
    assert bench.ready(later=10) == [0]
    assert bench.drain(later=10) == [first]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready only if it is not muted, not in back-off, and has a leader that can be sent to",
)
async def test_back_off_also_applies_to_newer_batches_flush_and_memory_waiters():
    bench = Bench(batch_size=1000)
    bench.fill()
    bench.ready()
    [batch] = bench.drain()
    batch.mark_sent(0)
    batch.mark_returned()
    bench.accumulator.requeue(batch, bench.loop.time() + 10)

    bench.fill(batches=2)
    bench.accumulator._flushing += 1
    bench.ready()

    assert bench.drain() == []
    bench.ready(later=10)
    assert bench.drain(later=10) == [batch]


# ------------------------------------------------------------------------------------------- sticky partitions


async def test_records_without_a_key_spread_evenly_and_fill_their_batches():
    bench = Bench([0, 1, 2, 0, 1, 2], batch_size=1000, partitioner_adaptive_partitioning_enable=False)
    sent = Counter()

    for _ in range(6000):
        sent[bench.send(None, b"v" * 80).topic_partition.partition] += 1
        if len(bench.accumulator.incomplete) > 100:
            bench.ready()
            bench.succeed(*(batch for node in range(3) for batch in bench.drain_all(node)))

    assert set(sent) == set(range(6))
    assert max(sent.values()) < 1.5 * min(sent.values())
    bench.accumulator._flushing += 1
    bench.ready()
    batches = [batch for node in range(3) for batch in bench.drain_all(node)]
    assert sum(batch.size for batch in batches) / len(batches) > 0.7 * 1000


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
async def test_sticky_partition_changes_after_batch_size_bytes():
    bench = Bench([0] * 10, batch_size=1000)
    bench.send(None)
    first = bench.topic.sticky_partition
    switches = 0

    for _ in range(40):
        before = bench.topic.sticky_partition
        size = bench.topic.sticky_bytes
        bench.send(None, b"v" * 100)
        if bench.topic.sticky_partition != before:
            switches += 1
            assert 1000 <= size <= 2000

    assert first in range(10)
    assert 2 <= switches <= 6


async def test_batch_size_of_zero_changes_the_sticky_partition_with_every_record():
    bench = Bench([0] * 10, batch_size=0, partitioner_adaptive_partitioning_enable=False)

    used = [bench.send(None).topic_partition.partition for _ in range(20)]

    assert sorted(used[:10]) == sorted(used[10:]) == list(range(10))


def lingered(bench: Bench) -> list[ProducerBatch]:
    """End the linger of the open batches, and return all batches that are sent then."""
    bench.ready(later=1)
    return bench.drain_all()


@pytest.mark.promise(
    "Records", "records without a key go to uniformly sticky partitions, adaptive to slow brokers"
)
async def test_a_sticky_partition_is_left_after_16_kib_once_its_batch_was_sent():
    bench = Bench([0] * 12, linger_ms=5)
    sticky = bench.send(None, b"v" * 17_000).topic_partition.partition
    [batch] = lingered(bench)

    assert bench.send(None).topic_partition.partition != sticky
    bench.succeed(batch)


async def test_a_sticky_partition_stays_below_16_kib_although_its_batch_was_sent():
    bench = Bench([0] * 12, linger_ms=5)
    sticky = bench.send(None, b"v" * 15_000).topic_partition.partition
    [batch] = lingered(bench)

    assert bench.send(None).topic_partition.partition == sticky
    bench.succeed(batch)


async def test_sticky_partition_stays_while_its_batch_fills():
    bench = Bench([0] * 12, linger_ms=5)
    sticky = bench.send(None, b"v" * 17_000).topic_partition.partition
    while bench.send(None, b"v" * 1000).topic_partition.partition == sticky:
        pass

    full, last = lingered(bench)

    assert full.size > 0.95 * bench.config.batch_size
    bench.succeed(full, last)


async def test_the_load_of_many_partitions_is_not_checked_at_every_switch(monkeypatch):
    """With 10,000 partitions, one check takes 10 ms."""
    looks = []
    monkeypatch.setattr(UniformSticky, "update_load", lambda *load, total: looks.append(total))
    bench = Bench([0] * 10_000, batch_size=1000)

    used = set()
    for _ in range(20):
        used.add(bench.send(None, b"v" * 900).topic_partition.partition)
        bench.ready(later=-1)
    assert len(used) > 5
    assert looks == [10_000]

    bench.ready(later=10)
    for _ in range(5):
        bench.send(None, b"v" * 900)
    assert looks == [10_000] * 2


async def test_the_sticky_partition_is_one_with_a_leader():
    bench = Bench([NO_NODE, 0, NO_NODE, 1])

    used = {bench.send(None, b"v" * 30_000).topic_partition.partition for _ in range(60)}

    assert used == {1, 3}


async def test_the_sticky_partition_is_any_one_if_none_has_a_leader():
    bench = Bench([NO_NODE] * 4)

    used = {bench.send(None, b"v" * 30_000).topic_partition.partition for _ in range(60)}

    assert used == {0, 1, 2, 3}


async def test_sticky_partition_is_left_when_it_loses_its_leader():
    bench = Bench([0, 1])
    lost = bench.send(None).topic_partition.partition

    bench.accumulator.update_leaders(
        cluster_of(topic_info([NO_NODE if number == lost else 0 for number in range(2)]))
    )

    assert bench.send(None).topic_partition.partition == 1 - lost


async def test_adaptive_sticky_partitioning_prefers_short_queues():
    bench = Bench([0, 0, 0], batch_size=1000, buffer_memory=1 << 24)
    bench.fill(0, batches=100)
    sent = Counter()

    for _ in range(900):
        partition = bench.send(None, b"v" * 300).topic_partition.partition
        sent[partition] += 1
        bench.ready()
        if partition != 0:
            queue = bench.topic.queues[partition]
            bench.succeed(*bench.drain(may_send=lambda other, queue=queue: other is queue))

    assert sent[0] < sent[1] / 5
    assert sent[0] < sent[2] / 5


# ----------------------------------------------------------------------------------------------------- topics


async def test_new_partitions_of_a_topic_are_added():
    bench = Bench([0])

    bench.accumulator.update_leaders(cluster_of(topic_info([0, 1, 2])))

    assert [queue.node_id for queue in bench.topic.queues] == [0, 1, 2]
    assert bench.accumulator.topics["orders"] is bench.topic


async def test_a_partition_keeps_its_queue_after_its_topic_was_forgotten():
    bench = Bench([0, 1])
    queues = list(bench.topic.queues)

    bench.accumulator.update_leaders(cluster_of())
    topic = bench.accumulator.open_topic(topic_info([0, 1]))

    assert topic.queues == queues


async def test_a_record_that_waited_for_memory_while_its_topic_was_forgotten_still_gets_a_partition():
    bench = Bench([0, 0, 0], batch_size=1000)
    topic: Topic = bench.topic
    bench.send(None)

    bench.accumulator.update_leaders(cluster_of())

    for _ in range(10):
        delivery = bench.path._append(topic, b"v" * 900, None, -1, None, None, True)
        assert delivery.topic_partition.partition in range(3)


async def test_a_topic_re_created_with_fewer_partitions_gets_no_record_for_the_missing_ones():
    bench = Bench([0, 1, 2, 0])

    bench.accumulator.update_leaders(cluster_of(topic_info([0, 1], topic_id=2)))

    topic = bench.accumulator.topics.get("orders") or bench.accumulator.open_topic(
        topic_info([0, 1], topic_id=2)
    )
    deliveries = [bench.path._append(topic, b"v", b"%d" % key, -1, None, None, False) for key in range(50)]
    assert {delivery.topic_partition.partition for delivery in deliveries} == {0, 1}


async def test_a_queue_without_batches_is_small():
    queue = PartitionQueue("orders", 0)
    assert sys.getsizeof(queue) + sys.getsizeof(queue.batches) + sys.getsizeof(queue.in_flight) < 300
    assert queue.batches is queue.in_flight == ()

    bench = Bench(linger_ms=0)
    used = bench.topic.queues[0]
    first = bench.send().batch
    assert used.batches == (first,), "one batch needs no deque"
    assert bench.drain() == [first]
    second = bench.send().batch
    assert bench.drain() == [second]
    assert used.batches == ()
    bench.succeed(first, second)


# ------------------------------------------------------------------------------------------------------ random runs


def check_invariants(bench: Bench) -> None:
    bench.check_memory()
    for queue in bench.topic.queues:
        orders = [batch.order for batch in queue.batches]
        assert orders == sorted(set(orders))
        assert [batch for batch in queue.batches if batch.state is BatchState.OPEN] == (
            [queue.tail] if queue.tail is not None else []
        )
        assert all(batch in bench.accumulator.incomplete for batch in queue.batches)
    filled = [queue for queue in bench.topic.queues if queue.batches]
    ready = {queue for group in bench.accumulator._ready.values() for queue in group}
    assert bench.accumulator._filled.keys() == set(filled)
    assert bench.accumulator._waiting.keys() == set(filled) - ready


@pytest.mark.promise("Accumulator, sender, connections", "buffer memory is accounted exactly")
@pytest.mark.parametrize("seed", range(25))
async def test_in_random_runs_memory_is_exact_order_is_kept_and_due_batches_can_be_drained(seed):
    random = Random(seed)
    codec = random.choice(["none", "gzip"])
    bench = Bench([0, 1, 2, 0], batch_size=2000, buffer_memory=30_000, compression_type=codec, linger_ms=1000)
    leaders = [0, 1, 2, 0]
    now = bench.loop.time()
    in_flight: list[ProducerBatch] = []
    drained_orders: dict[PartitionQueue, int] = {}

    def send() -> None:
        value = random.randbytes(random.choice([1, 300, 1500, 4000]))
        bench.path._append(bench.topic, value, None, random.randrange(-1, 4), None, None, True)

    def drain() -> None:
        bench.accumulator.ready(now)
        for node in (0, 1, 2):
            for batch in bench.drain(node, now - bench.loop.time(), lambda queue: not queue.in_flight):
                assert leaders[batch.queue.partition] == node
                assert batch.order >= drained_orders.get(batch.queue, (-1, 0))
                drained_orders[batch.queue] = batch.order
                batch.mark_sent(node)
                batch.queue.in_flight += (batch,)
                in_flight.append(batch)

    def end(batch: ProducerBatch) -> None:
        batch.succeed(0, -1, -1)
        bench.accumulator.release(batch)

    def answer() -> None:
        if not in_flight:
            return
        batch = in_flight.pop(random.randrange(len(in_flight)))
        note_answered(batch)
        if random.random() < 0.5:
            end(batch)
        else:
            batch.mark_returned()
            bench.accumulator.requeue(batch, now + random.choice([0, 0.5]))
        bench.accumulator.touch(batch.queue)

    def give_up() -> None:
        waiting = [batch for batch in bench.accumulator.incomplete if batch.state is not BatchState.IN_FLIGHT]
        if waiting:
            bench.give_up(random.choice(waiting))

    def move_leaders() -> None:
        leaders[:] = [random.choice([NO_NODE, 0, 1, 2]) for _ in leaders]
        bench.accumulator.update_leaders(cluster_of(topic_info(leaders)))

    def hurry() -> None:
        tail = random.choice(bench.topic.queues).tail
        if tail is not None:
            tail.is_due = True
            bench.accumulator.hurry(tail)

    steps = [send] * 8 + [drain] * 3 + [answer] * 4 + [give_up, move_leaders, hurry, bench.executor.work]
    for _ in range(400):
        random.choice(steps)()
        await asyncio.sleep(0)
        now += random.choice([0, 0.01, 0.3])
        check_invariants(bench)

    # At the end, everything can be sent.
    leaders[:] = [0, 1, 2, 0]
    bench.accumulator.update_leaders(cluster_of(topic_info(leaders)))
    now += 1000
    for _ in range(len(bench.accumulator.incomplete) + 10):
        bench.executor.work()
        await asyncio.sleep(0)
        drain()
        for batch in in_flight:
            note_answered(batch)
            end(batch)
            bench.accumulator.touch(batch.queue)
        in_flight.clear()
    assert not bench.accumulator.incomplete
    assert bench.memory.available == bench.memory.total
    assert bench.accumulator.ready(now) == ([], None)
