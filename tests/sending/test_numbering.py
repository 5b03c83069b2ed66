"""Numbering: the partitions that may send a batch now, and the numbers of the batches."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.cluster import NO_TOPIC_ID
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records._record_path import Delivery, Gate
from aioproducer.records.batch import NAMED, ProducerBatch
from aioproducer.records.idempotence import LAST_EPOCH, LAST_SEQUENCE, Idempotence, ProducerIdentity
from aioproducer.sending.numbering import Numbering
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.transactions.state import Transaction, TransactionState
from aioproducer.types import TopicPartition
from tests.support.accumulator_bench import Bench, note_answered
from tests.support.producing import (
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    batch_headers,
    error_of,
    numbers,
    offsets,
    producing,
    results,
    send_numbers,
    until,
    within,
)


@pytest.mark.promise("Accumulator, sender, connections", "sequences wrap from 2^31-1 to 0")
async def test_sequences_wrap_from_their_last_number_to_zero():
    async with producing(batch_size=400) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        queue = producer._accumulator._queues["t"][0]
        queue.sequence.next_sequence = LAST_SEQUENCE - 6
        cluster.log("t", 0).producers.clear()
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)

        deliveries = [await producer.send("t", b"%d" % number) for number in range(1, 30)]
        assert await offsets(deliveries) == list(range(1, 30))

        assert numbers(cluster) == list(range(30))
        headers = batch_headers(cluster)
        assert {header[0] for header in headers} == {0}
        expected = LAST_SEQUENCE - 6
        for _, first, count in headers[1:]:
            assert first == expected
            expected = (first + count) % (LAST_SEQUENCE + 1)
        assert expected < 100


@pytest.mark.promise("KIPs", "KIP-360: a new epoch without a new producer id")
async def test_after_the_last_epoch_a_new_producer_id_is_requested():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.partitions_for("t")
        await until(lambda: producer._sender._idempotence.identity)
        first = producer._sender._idempotence.identity.producer_id
        producer._sender._idempotence.use(ProducerIdentity(first, LAST_EPOCH))
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)

        found = await results(await send_numbers(producer, range(1, 6)))

        assert isinstance(found[0], DeliveryError)
        assert [metadata.offset for metadata in found[1:]] == [1, 2, 3, 4]
        assert numbers(cluster) == [0, 2, 3, 4, 5]
        header = cluster.batches("t", 0)[-1].header
        assert header.producer_id != first
        assert header.producer_epoch == 0


async def test_a_late_failure_of_an_old_epoch_does_not_disturb_the_new_one():
    """One of two partitions raises the epoch while the other still has a batch of the old epoch in flight."""
    async with producing(topics={"t": 2}, brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        for partition in (0, 1):
            await producer.send_and_wait("t", b"0", partition=partition)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, partition=1, hold=release, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        slow = await send_numbers(producer, range(1, 4), partition=1)
        await within(1, held.reached())
        cluster.faults.add(PRODUCE, partition=0, error=ErrorCode.INVALID_RECORD)
        assert isinstance(await error_of(producer.send_and_wait("t", b"1", partition=0)), DeliveryError)
        await producer.send_and_wait("t", b"2", partition=0)
        release.set()

        assert await offsets(slow) == [1, 2, 3]
        assert await offsets(await send_numbers(producer, range(4, 8), partition=1)) == [4, 5, 6, 7]
        assert numbers(cluster, "t", 1) == list(range(8))
        assert numbers(cluster, "t", 0) == [0, 2]


async def test_a_partition_with_a_batch_in_flight_waits_for_the_first_acknowledgement():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        held = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        deliveries = await send_numbers(producer, range(3))
        await within(1, held.reached())
        numbering: Numbering = producer._sender._numbering
        queue = producer._accumulator._queues["t"][0]

        assert not numbering.prepare(queue), "a broker without state accepts any first number"

        held.hold.set()
        assert await offsets(deliveries) == [0, 1, 2]
        blocked = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        more = await send_numbers(producer, range(3, 8))
        await within(1, blocked.reached())
        await until(lambda: len(queue.in_flight) == 5)
        blocked.hold.set()
        assert await offsets(more) == [3, 4, 5, 6, 7]


# ------------------------------------------------------------------------------------------ without a sender

OLD, NEW = UUID(int=1), UUID(int=2)


class Stage:
    """A Numbering with a real accumulator and the sequences of a producer that has an identity."""

    def __init__(
        self, *, version: int | None = None, identity: ProducerIdentity | None = None, **settings
    ) -> None:
        self.bench = bench = Bench((0, 0), linger_ms=0, batch_size=1000, **settings)
        self.transaction = Transaction("tx" if version else None, Gate())
        if version:
            for state in (TransactionState.INITIALIZING, TransactionState.READY):
                self.transaction.move(state)
            self.transaction.begin(is_v2=version == 2)
        self.idempotence = Idempotence(bench.config.enable_idempotence)
        self.identity = identity or ProducerIdentity(4711, 3, is_transactional=bool(version))
        self.idempotence.use(self.identity)
        self.metadata = SimpleNamespace(cluster=SimpleNamespace(topics={}))
        self.is_topic(OLD)
        self.results = ProduceResults(
            bench.core, bench.accumulator, None, None, self.idempotence, self.transaction
        )
        self.numbering = Numbering(
            bench.core, bench.accumulator, self.metadata, self.idempotence, self.transaction, self.results
        )
        self.queue = bench.topic.queues[0]

    def is_topic(self, topic_id: UUID | None) -> None:
        """Set the topic's id in the metadata; None removes the topic."""
        self.metadata.cluster.topics.clear()
        if topic_id is not None:
            self.metadata.cluster.topics["orders"] = SimpleNamespace(topic_id=topic_id)

    def send(self, partition: int = 0) -> Delivery:
        """Send a record, and close its batch."""
        delivery = self.bench.send(partition)
        self.bench.accumulator.close_first(delivery.batch.queue)
        return delivery

    def put_in_flight(self, delivery: Delivery) -> ProducerBatch:
        """Number a batch and send it."""
        batch = delivery.batch
        assert self.numbering.prepare(batch.queue)
        self.bench.accumulator.take(batch.queue)
        self.numbering.number(batch)
        batch.mark_sent(0)
        batch.queue.in_flight += (batch,)
        return batch

    def acknowledge(self, batch: ProducerBatch) -> None:
        note_answered(batch)
        self.results.complete(batch, 0.0, base_offset=0)

    def put_back(self, batch: ProducerBatch, *, is_in_doubt: bool = False, topic_id: UUID = OLD) -> None:
        """Return a batch to its queue, as after a retriable error."""
        note_answered(batch)
        if is_in_doubt:
            batch.doubt(topic_id.int)
        batch.mark_returned()
        self.bench.accumulator.requeue(batch, 0.0)


async def test_batches_get_consecutive_numbers():
    stage = Stage()
    first = stage.put_in_flight(stage.send())
    stage.acknowledge(first)
    second = stage.put_in_flight(stage.send())

    assert (first.identity, first.first_sequence) == (stage.identity, 0)
    assert (second.identity, second.first_sequence) == (stage.identity, 1)


async def test_a_batch_that_is_sent_again_keeps_its_numbers():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    stage.put_back(batch)
    stage.put_in_flight(batch.delivery())

    assert batch.first_sequence == 0
    assert stage.queue.sequence.next_sequence == 1


async def test_a_numbered_batch_is_sent_although_the_producer_id_is_being_replaced():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    stage.put_back(batch)
    stage.idempotence.use(None)

    assert stage.numbering.prepare(stage.queue)


async def test_without_a_producer_id_nothing_is_sent():
    stage = Stage()
    stage.idempotence.use(None)
    stage.send()

    assert not stage.numbering.prepare(stage.queue)


async def test_a_second_batch_follows_once_the_broker_has_acknowledged_one():
    stage = Stage()
    first = stage.put_in_flight(stage.send())
    stage.send()
    assert not stage.numbering.prepare(stage.queue), "the broker may not know the producer"
    stage.acknowledge(first)

    for _ in range(5):
        stage.put_in_flight(stage.send() if not stage.queue.batches else stage.queue.batches[0].delivery())
    stage.send()

    assert not stage.numbering.prepare(stage.queue), "at most five"


async def test_a_batch_is_sent_again_only_with_nothing_else_in_flight():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    one, _ = [stage.put_in_flight(stage.send()) for _ in range(2)]
    stage.put_back(one)

    assert not stage.numbering.prepare(stage.queue)


async def test_a_batch_whose_first_number_is_0_after_the_wrap_is_also_sent_again_alone():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.queue.sequence.next_sequence = LAST_SEQUENCE
    one, other = [stage.put_in_flight(stage.send()) for _ in range(2)]
    assert (one.first_sequence, other.first_sequence) == (LAST_SEQUENCE, 0)
    stage.put_back(other)

    assert not stage.numbering.prepare(stage.queue)

    stage.put_back(one)
    stage.queue.sequence.has_gap = True
    stage.acknowledge(stage.put_in_flight(one.delivery()))
    assert other.first_sequence == 0, "it keeps its number"


async def test_a_batch_that_fails_while_it_is_prepared_is_not_sent():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    delivery = batch.delivery()
    stage.put_back(batch, is_in_doubt=True, topic_id=UUID(int=NAMED))
    stage.is_topic(NEW)

    assert not stage.numbering.prepare(stage.queue)
    assert delivery.exception().outcome is Outcome.UNKNOWN


async def test_no_second_batch_is_sent_to_a_re_created_topic_while_one_for_the_old_is_in_flight():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.put_in_flight(stage.send())
    stage.send()
    assert stage.numbering.prepare(stage.queue)
    stage.is_topic(NEW)

    assert not stage.numbering.prepare(stage.queue)

    stage.is_topic(None)
    assert stage.numbering.prepare(stage.queue), "a topic that is missing for the moment is the same one"
    stage.is_topic(NO_TOPIC_ID)
    assert stage.numbering.prepare(stage.queue), (
        "a broker without topic ids cannot say that it is another one"
    )


@pytest.mark.parametrize("most", [1, 3])
async def test_without_idempotence_only_the_setting_limits_what_is_in_flight(most):
    stage = Stage(enable_idempotence=False, max_in_flight_requests_per_connection=most)
    limit = stage.bench.config.max_in_flight_per_partition
    for _ in range(limit):
        batch = stage.put_in_flight(stage.send())
        assert not batch.is_numbered
    stage.send()

    assert not stage.numbering.prepare(stage.queue)


async def test_a_gap_begins_a_new_epoch_with_sequence_0():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.queue.sequence.has_gap = True

    batch = stage.put_in_flight(stage.send())

    assert batch.identity == ProducerIdentity(4711, 4)
    assert batch.first_sequence == 0


async def test_a_new_epoch_renumbers_batches_not_in_the_log_and_fails_those_that_may_be():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    doubtful, refused = [stage.put_in_flight(stage.send()) for _ in range(2)]
    deliveries = [doubtful.delivery(), refused.delivery()]
    stage.put_back(refused)
    stage.put_back(doubtful, is_in_doubt=True)
    refused.number(None, -1)
    stage.idempotence.use(ProducerIdentity(4711, 4))
    stage.queue.batches.rotate(1)
    stage.bench.wake.clear()

    assert stage.numbering.prepare(stage.queue)

    assert deliveries[0].exception().outcome is Outcome.UNKNOWN
    assert "a new producer epoch began" in str(deliveries[0].exception())
    assert list(stage.queue.batches) == [refused]
    assert not deliveries[1].done()
    assert stage.bench.wake.is_set(), "the batches behind it can now be sent"


async def test_a_new_epoch_renumbers_batches_that_were_rejected_under_the_old_one():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    first, rejected = [stage.put_in_flight(stage.send()) for _ in range(2)]
    for batch in (rejected, first):
        stage.put_back(batch)
    first.number(None, -1)
    stage.queue.sequence.has_gap = True

    for batch in (first, rejected):
        stage.acknowledge(stage.put_in_flight(batch.delivery()))

    newer = ProducerIdentity(4711, 4)
    assert (first.identity, first.first_sequence) == (newer, 0)
    assert (rejected.identity, rejected.first_sequence) == (newer, 1)


async def test_in_gapless_order_a_new_epoch_ends_each_batch_in_doubt_once():
    stage = Stage(enable_gapless_order=True)
    stage.acknowledge(stage.put_in_flight(stage.send()))
    first, *doubtful = [stage.put_in_flight(stage.send()) for _ in range(3)]
    deliveries = [batch.delivery() for batch in doubtful]
    for batch in reversed(doubtful):
        stage.put_back(batch, is_in_doubt=True)
    stage.put_back(first)
    first.number(None, -1)
    stage.queue.sequence.has_gap = True

    assert stage.numbering.prepare(stage.queue)

    assert [delivery.exception().outcome for delivery in deliveries] == [Outcome.UNKNOWN] * 2
    assert list(stage.queue.batches) == [first]


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "records for a re-created topic are sent to its new log or reported, never lost silently",
)
async def test_a_re_created_topic_gets_a_new_epoch_and_the_batches_that_cannot_be_in_its_log():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    batches = [stage.put_in_flight(stage.send()) for _ in range(2)]
    by_id, by_name = [batch.delivery() for batch in batches]
    stage.put_back(batches[1], is_in_doubt=True, topic_id=UUID(int=NAMED))
    stage.put_back(batches[0], is_in_doubt=True, topic_id=OLD)
    stage.is_topic(NEW)

    assert stage.numbering.prepare(stage.queue)
    stage.put_in_flight(by_id)

    assert (batches[0].identity, batches[0].first_sequence) == (ProducerIdentity(4711, 4), 0)
    assert by_name.exception().outcome is Outcome.UNKNOWN
    assert "the topic was re-created" in str(by_name.exception())


async def test_batches_that_the_old_topic_rejected_get_new_numbers_in_the_re_created_one():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    batch = stage.put_in_flight(stage.send())
    stage.put_back(batch)
    stage.is_topic(NEW)

    stage.put_in_flight(batch.delivery())

    assert (batch.identity, batch.first_sequence) == (ProducerIdentity(4711, 4), 0)


async def test_a_batch_that_may_be_in_the_log_of_the_old_topic_does_not_return_to_it():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    delivery = batch.delivery()
    stage.put_back(batch, is_in_doubt=True)
    stage.is_topic(NEW)
    assert stage.numbering.prepare(stage.queue)
    assert not batch.is_numbered
    stage.is_topic(OLD)  # outdated metadata from another broker

    assert not stage.numbering.prepare(stage.queue)

    assert delivery.exception().outcome is Outcome.UNKNOWN


async def test_an_expired_batch_of_a_re_created_topic_is_found_in_partitions_that_it_no_longer_has():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    delivery = batch.delivery()
    assert not stage.numbering.end_if_for_old_topic(batch), "it is in flight"
    stage.put_back(batch, is_in_doubt=True, topic_id=UUID(int=NAMED))
    assert not stage.numbering.end_if_for_old_topic(batch), "the topic is the same"
    stage.is_topic(NEW)

    assert stage.numbering.end_if_for_old_topic(batch)
    assert delivery.exception().outcome is Outcome.UNKNOWN


async def test_a_transaction_cannot_continue_in_a_topic_that_was_re_created():
    stage = Stage(version=1)
    stage.transaction.add_joined([TopicPartition("orders", 0)])
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.transaction.may_have_started = True
    stage.is_topic(NEW)
    delivery = stage.send()
    stage.bench.wake.clear()

    assert not stage.numbering.prepare(stage.queue)

    assert stage.transaction.state is TransactionState.ABORT_REQUIRED
    assert "topic orders was re-created" in str(stage.transaction.error)
    assert stage.transaction.epoch_is_spent
    assert stage.bench.wake.is_set()
    assert not delivery.done(), "the next pass fails it"
    assert stage.idempotence.identity == stage.identity, "the coordinator raises the epoch"


async def test_batches_that_the_old_topic_rejected_end_with_their_transaction():
    stage = Stage(version=2)
    batch = stage.put_in_flight(stage.send())
    stage.put_back(batch)
    stage.is_topic(NEW)

    assert not stage.numbering.prepare(stage.queue)

    assert stage.transaction.state is TransactionState.ABORT_REQUIRED
    assert not batch.delivery().done(), "the next pass fails it with TransactionAbortedError"


@pytest.mark.parametrize("version", [1, 2])
async def test_a_partition_joins_its_transaction_before_a_record_is_written_to_it(version):
    stage = Stage(version=version)
    place = TopicPartition("orders", 0)
    stage.send()

    assert stage.numbering.prepare(stage.queue) is (version == 2), "with v2 writing is joining"
    assert list(stage.transaction.wanted) == ([place] if version == 1 else [])

    stage.transaction.add_joined([place])
    assert stage.numbering.prepare(stage.queue)


async def test_a_partition_that_was_exported_is_not_written_to():
    stage = Stage(version=2)
    stage.transaction.exported[TopicPartition("orders", 0)] = None
    stage.send()
    stage.send(1)
    stage.bench.wake.clear()

    assert stage.numbering.prepare(stage.bench.topic.queues[1]), "another partition"
    assert not stage.numbering.prepare(stage.queue)

    assert stage.transaction.state is TransactionState.ABORT_REQUIRED
    assert "orders-0 was exported to another producer" in str(stage.transaction.error)
    assert stage.bench.wake.is_set()


async def test_a_batch_that_has_numbers_keeps_them_although_a_gap_follows():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    stage.put_back(batch)
    stage.queue.sequence.has_gap = True

    stage.put_in_flight(batch.delivery())

    assert (batch.identity, batch.first_sequence) == (stage.identity, 0)


async def test_without_a_producer_id_batches_keep_the_numbers_that_they_have():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    unnumbered, numbered = [stage.put_in_flight(stage.send()) for _ in range(2)]
    for batch in (numbered, unnumbered):
        stage.put_back(batch)
    unnumbered.number(None, -1)
    stage.idempotence.use(None)

    assert not stage.numbering.prepare(stage.queue)

    assert numbered.first_sequence == 2


async def test_a_topic_whose_id_becomes_known_is_still_the_same_topic():
    stage = Stage()
    stage.is_topic(NO_TOPIC_ID)
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.put_in_flight(stage.send())
    stage.send()

    stage.is_topic(OLD)
    assert stage.numbering.prepare(stage.queue)


async def test_equal_topic_ids_mean_the_same_topic_in_every_snapshot():
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.put_in_flight(stage.send())
    stage.send()

    stage.is_topic(UUID(int=OLD.int))
    assert stage.numbering.prepare(stage.queue)


@pytest.mark.parametrize(
    "topic_id", [UUID(int=OLD.int), NO_TOPIC_ID, None], ids=["equal", "no id", "missing"]
)
async def test_a_topic_that_is_the_same_in_other_metadata_continues_its_numbers(topic_id):
    stage = Stage()
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.is_topic(topic_id)

    batch = stage.put_in_flight(stage.send())

    assert (batch.identity, batch.first_sequence) == (stage.identity, 1)


async def test_a_batch_in_flight_has_not_left_its_topic():
    stage = Stage()
    batch = stage.put_in_flight(stage.send())
    sequence = stage.queue.sequence
    stage.is_topic(NEW)

    assert not stage.numbering.end_if_for_old_topic(batch)

    assert stage.queue.sequence is sequence
    assert stage.idempotence.identity == stage.identity


async def test_a_batch_that_was_never_prepared_has_not_left_its_topic():
    stage = Stage()
    delivery = stage.send()
    stage.is_topic(NEW)

    assert not stage.numbering.end_if_for_old_topic(delivery.batch)
    assert stage.queue.sequence is None


async def test_batches_that_fail_with_the_one_before_them_are_left_alone_when_their_topic_is_re_created():
    stage = Stage(enable_gapless_order=True)
    stage.acknowledge(stage.put_in_flight(stage.send()))
    batches = [stage.put_in_flight(stage.send()) for _ in range(2)]
    deliveries = [batch.delivery() for batch in batches]
    for batch in reversed(batches):
        stage.put_back(batch, is_in_doubt=True, topic_id=UUID(int=NAMED))
    stage.is_topic(NEW)

    assert not stage.numbering.prepare(stage.queue)

    assert [delivery.exception().outcome for delivery in deliveries] == [Outcome.UNKNOWN] * 2


async def test_an_exported_partition_is_not_written_to_while_a_batch_is_in_flight():
    stage = Stage(version=2)
    stage.acknowledge(stage.put_in_flight(stage.send()))
    stage.put_in_flight(stage.send())
    stage.send()
    assert stage.numbering.prepare(stage.queue)

    stage.transaction.exported[TopicPartition("orders", 0)] = None
    assert not stage.numbering.prepare(stage.queue)
