"""Failing records: the outcome is honest, and the partition continues."""

from __future__ import annotations

import asyncio
import copy

import pytest

from aioproducer import DeliveryError, DeliveryTimeoutError, Outcome
from aioproducer.errors import (
    BrokerError,
    TopicAuthorizationError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import TABLE, UNKNOWN_CODES
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.testing.embedded.handlers import HANDLERS
from tests.conftest import MS, in_virtual_time
from tests.support.error_table.produce import damage_the_next_batch
from tests.support.producing import (
    METADATA,
    NOT_RETRIABLE,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    batch_headers,
    by_name,
    error_of,
    numbers,
    offsets,
    producing,
    results,
    send_numbers,
    send_to_a_re_created_topic,
    until,
    values,
    within,
)

# ------------------------------------------------------------------------------------- timeouts and outcomes


async def start_late(cluster, producer) -> None:
    """Make the broker throttle the producer, so that most of the next records' delivery timeout passes first."""
    await producer.send_and_wait("t", b"0")
    cluster.faults.add(PRODUCE, throttle_ms=150)
    await producer.send_and_wait("t", b"1")


LATE = {"request_timeout_ms": 150, "delivery_timeout_ms": 200, **ONE_BATCH_PER_RECORD}


@in_virtual_time
async def test_an_expired_batch_whose_answer_still_arrives_needs_no_new_epoch():
    async with producing(**LATE) as (cluster, producer):
        await start_late(cluster, producer)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        early = await producer.send("t", b"2")
        await within(1, held.reached())
        late = await producer.send("t", b"3")
        await until(lambda: producer.metrics().in_flight == 2)

        assert (await error_of(early)).outcome is Outcome.UNKNOWN
        release.set()

        assert (await within(1, late)).offset == 3
        assert (await within(1, producer.send_and_wait("t", b"4"))).offset == 4
        assert numbers(cluster) == [0, 1, 2, 3, 4]
        assert {header[0] for header in batch_headers(cluster)} == {0}
        assert isinstance(early.exception(), DeliveryTimeoutError), "a result never changes"
        assert producer.metrics().records_acked == 4


@in_virtual_time
async def test_a_batch_that_expires_in_flight_and_is_lost_does_not_block_the_next():
    async with producing(**LATE) as (cluster, producer):
        await start_late(cluster, producer)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        early = await producer.send("t", b"2")
        await within(1, held.reached())
        late = await producer.send("t", b"3")
        await until(lambda: producer.metrics().in_flight == 2)

        assert (await error_of(early)).outcome is Outcome.UNKNOWN
        release.set()

        assert (await within(1, late)).offset == 2
        assert numbers(cluster) == [0, 1, 3]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "nothing is drained for a broker that can't take it: batches fill, and expire as NOT_PERSISTED",
)
@in_virtual_time
async def test_batches_for_a_busy_broker_are_not_drained_and_expire_as_not_persisted():
    settings = {"request_timeout_ms": 90_000 * MS, "delivery_timeout_ms": 120_000 * MS}
    async with producing(**ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        deliveries = await send_numbers(producer, range(1, 9))

        errors = await results(deliveries)

        outcomes = [error.outcome for error in errors]
        assert outcomes == [Outcome.UNKNOWN] * 5 + [Outcome.NOT_PERSISTED] * 3
        assert [error.attempts > 0 for error in errors] == [True] * 5 + [False] * 3
        cluster.thaw_broker(0)


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "nothing is drained for a broker that can't take it: batches fill, and expire as NOT_PERSISTED",
)
async def test_batches_keep_filling_while_the_broker_cannot_accept_them():
    async with producing(max_in_flight_requests_per_connection=1) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        deliveries = [await producer.send("t", b"1")]
        await within(1, held.reached())
        for number in range(2, 12):
            deliveries += await send_numbers(producer, [number])
            await asyncio.sleep(0)
        release.set()

        assert await offsets(deliveries) == list(range(1, 12))
        assert [header[2] for header in batch_headers(cluster)] == [1, 1, 10]


# --------------------------------------------------------------------------------------- errors that are final


@pytest.mark.parametrize("code", NOT_RETRIABLE, ids=by_name)
async def test_a_rejection_fails_the_batch_as_not_persisted_and_the_partition_continues(code):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=code)
        loop = asyncio.get_running_loop()
        began = loop.time()

        deliveries = await send_numbers(producer, range(1, 9))
        found = await results(deliveries)

        error = found[0]
        assert isinstance(error, DeliveryError)
        assert not isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert (error.topic, error.partition, error.broker, error.attempts) == ("t", 0, 0, 1)
        assert 0 <= error.elapsed <= loop.time() - began
        assert isinstance(error.last_error, BrokerError)
        assert (error.last_error.code, error.last_error.name) == (code, code.name)
        assert code.name in str(error)
        assert "t-0" in str(error)
        assert [metadata.offset for metadata in found[1:]] == list(range(1, 8))
        assert numbers(cluster) == [0, *range(2, 9)], "nothing else is lost or duplicated"


@pytest.mark.parametrize("after_append", [False, True], ids=["before the append", "after the append"])
async def test_an_unknown_server_error_has_an_unknown_outcome_and_is_not_retried(after_append):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.UNKNOWN_SERVER_ERROR, after_append=after_append)

        deliveries = await send_numbers(producer, range(1, 6))
        found = await results(deliveries)

        assert found[0].outcome is Outcome.UNKNOWN
        assert not [end for end in found[1:] if isinstance(end, BaseException)]
        assert numbers(cluster) == ([0, 1] if after_append else [0]) + [2, 3, 4, 5]


async def test_an_unassigned_error_code_has_an_unknown_outcome_and_keeps_its_number():
    async with producing() as (cluster, producer):
        fault = cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        fault.error = 9999

        error = await error_of(producer.send_and_wait("t", b"v"))

        assert error.outcome is Outcome.UNKNOWN
        assert (error.last_error.code, error.last_error.name) == (9999, "UNKNOWN_CODE_9999")


async def test_after_a_failed_batch_only_its_partition_uses_a_new_epoch():
    async with producing(topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        for partition in (0, 1):
            await producer.send_and_wait("t", b"0", partition=partition)
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, partition=0)
        release = asyncio.Event()

        assert (
            await error_of(producer.send_and_wait("t", b"1", partition=0))
        ).outcome is Outcome.NOT_PERSISTED
        held = cluster.faults.add(PRODUCE, partition=1, hold=release)
        healthy = await send_numbers(producer, range(1, 4), partition=1)
        await within(1, held.reached())
        after = await send_numbers(producer, range(2, 5), partition=0)
        release.set()

        assert await offsets(after) == [1, 2, 3]
        assert await offsets(healthy) == [1, 2, 3]
        assert batch_headers(cluster, "t", 0) == [(0, 0, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)]
        assert numbers(cluster, "t", 0) == [0, 2, 3, 4]
        assert numbers(cluster, "t", 1) == [0, 1, 2, 3]


async def test_when_the_first_of_five_fails_finally_the_others_are_delivered_in_order():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, hold=release)
        deliveries = await send_numbers(producer, range(1, 6))
        await within(1, held.reached())
        assert producer.metrics().in_flight == 5
        deliveries += await send_numbers(producer, range(6, 9))
        release.set()

        found = await results(deliveries)

        assert isinstance(found[0], DeliveryError)
        assert [metadata.offset for metadata in found[1:]] == list(range(1, 8))
        assert numbers(cluster) == [0, *range(2, 9)]
        assert producer.metrics().errors["OUT_OF_ORDER_SEQUENCE_NUMBER"] >= 4


async def test_when_two_of_five_fail_finally_the_others_are_delivered_in_order():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_TIMESTAMP)

        found = await results(await send_numbers(producer, range(1, 9)))

        assert [isinstance(end, DeliveryError) for end in found] == [True, True] + [False] * 6
        assert numbers(cluster) == [0, *range(3, 9)]


async def test_failed_records_of_two_partitions_at_the_same_time():
    async with producing(topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        for partition in (0, 1):
            await producer.send_and_wait("t", b"0", partition=partition)
            cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, partition=partition)

        deliveries = []
        for number in range(1, 7):
            for partition in (0, 1):
                deliveries += await send_numbers(producer, [number], partition=partition)
        found = await results(deliveries)

        assert [isinstance(end, DeliveryError) for end in found] == [True, True] + [False] * 10
        assert numbers(cluster, "t", 0) == numbers(cluster, "t", 1) == [0, *range(2, 7)]


async def test_a_broker_that_forgot_the_producer_accepts_the_next_records():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.log("t", 0).producers.clear()

        deliveries = await send_numbers(producer, range(1, 6))

        assert await offsets(deliveries) == list(range(1, 6))
        assert numbers(cluster) == list(range(6))


@pytest.mark.promise("KIPs", "KIP-360: a new epoch without a new producer id")
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
    ids=by_name,
)
async def test_a_broker_that_lost_track_of_the_sequence_gets_a_new_epoch_and_every_record(code):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=code)

        deliveries = await send_numbers(producer, range(1, 9))

        assert await offsets(deliveries) == list(range(1, 9))
        assert numbers(cluster) == list(range(9))
        assert batch_headers(cluster)[1][0] >= 1


async def test_a_log_that_lost_acknowledged_records_accepts_the_next_ones():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        for number in range(4):
            await producer.send_and_wait("t", b"%d" % number)
        cluster.log("t", 0).truncate(2)

        deliveries = await send_numbers(producer, range(4, 9))

        assert await offsets(deliveries) == list(range(2, 7))
        assert numbers(cluster) == [0, 1, 4, 5, 6, 7, 8]


async def test_a_batch_that_may_be_in_the_log_is_never_renumbered():
    """The batch was appended, its answer was lost, and the broker forgot it: a new number would create a duplicate."""
    async with producing(retry_backoff_ms=20, retry_backoff_max_ms=20) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

        error = await error_of(producer.send_and_wait("t", b"1"))

        assert error.outcome is Outcome.UNKNOWN
        assert (await within(1, producer.send_and_wait("t", b"2"))).offset == 2
        assert numbers(cluster) == [0, 1, 2]


async def test_message_too_large_after_an_attempt_in_doubt_is_unknown_and_not_retried():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)

        error = await error_of(producer.send_and_wait("t", b"1"))

        assert error.outcome is Outcome.UNKNOWN
        assert (await within(1, producer.send_and_wait("t", b"2"))).offset == 2
        assert numbers(cluster) == [0, 1, 2]


async def test_a_single_record_above_the_topics_limit_fails_alone():
    async with producing(topics={}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        cluster.create_topic("t", 1, config={"max.message.bytes": "500"})
        before = await producer.send("t", b"0")
        large = await producer.send("t", bytes(1000))
        after = await send_numbers(producer, [1, 2, 3])

        error = await error_of(large)

        assert error.outcome is Outcome.NOT_PERSISTED
        assert error.last_error.name == "MESSAGE_TOO_LARGE"
        assert await offsets([before, *after]) == [0, 1, 2, 3]
        assert numbers(cluster) == [0, 1, 2, 3]


async def test_a_log_whose_old_records_were_deleted_accepts_new_ones():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await offsets(await send_numbers(producer, range(5)))
        cluster.log("t", 0).delete_before(5)

        deliveries = await send_numbers(producer, range(5, 9))

        assert await offsets(deliveries) == [5, 6, 7, 8]
        assert deliveries[0].result().log_start_offset == 5


async def test_restored_authorization_needs_no_restart():
    async with producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert (await error_of(producer.send_and_wait("t", b"0"))).outcome is Outcome.NOT_PERSISTED
        assert (await within(1, producer.send_and_wait("t", b"1"))).offset == 0

        cluster.faults.add(METADATA, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic="u")
        assert isinstance(await error_of(producer.send("u", b"0")), TopicAuthorizationError)
        assert (await within(1, producer.send_and_wait("u", b"1"))).offset == 0


# ------------------------------------------------------------------------------------------- strange answers


@pytest.fixture
def rewrite(monkeypatch):
    """Install a function that changes the answers to Produce requests before they are written."""

    def install(change) -> None:
        original = HANDLERS[PRODUCE]

        async def changed(call, request):
            response = await original(call, request)
            change(response)
            return response

        monkeypatch.setitem(HANDLERS, PRODUCE, changed)

    return install


@pytest.mark.promise("Accumulator, sender, connections", "any time-out or violation closes the connection")
async def test_an_answer_for_a_partition_not_in_the_request_closes_the_connection_and_loses_nothing(rewrite):
    async with producing(topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0", partition=0)
        left = [1]

        def add_partition(response) -> None:
            if left and left.pop():
                answers = response.responses[0].partition_responses
                answers.append(copy.copy(answers[0]))
                answers[-1].index = 77

        rewrite(add_partition)
        deliveries = await send_numbers(producer, range(1, 6), partition=0)

        assert await offsets(deliveries) == [1, 2, 3, 4, 5]
        assert numbers(cluster) == [0, 1, 2, 3, 4, 5]
        assert [node.disconnects for node in producer.metrics().nodes if node.node_id == 0] == [1]


async def test_an_answer_that_names_a_partition_twice_closes_the_connection_and_loses_nothing(rewrite):
    async with producing(topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.partitions_for("t")
        left = [1]

        def repeat(response) -> None:
            if left and left.pop():
                answers = response.responses[0].partition_responses
                answers.append(copy.copy(answers[0]))
                answers[-1].error_code = ErrorCode.INVALID_RECORD

        rewrite(repeat)
        deliveries = []
        for partition in (0, 1):
            deliveries += await send_numbers(producer, range(3), partition=partition)

        assert await offsets(deliveries) == [0, 1, 2] * 2
        assert numbers(cluster, "t", 0) == numbers(cluster, "t", 1) == [0, 1, 2]
        assert [node.disconnects for node in producer.metrics().nodes if node.node_id == 0] == [1]


async def test_an_answer_without_an_offset_is_a_success_without_an_offset(rewrite):
    async with producing() as (_, producer):

        def forget_offset(response) -> None:
            response.responses[0].partition_responses[0].base_offset = -1

        rewrite(forget_offset)

        assert (await within(1, producer.send_and_wait("t", b"v"))).offset is None


@pytest.mark.promise("Accumulator, sender, connections", "leader hints in Produce responses are used")
async def test_an_invalid_leader_hint_is_ignored(rewrite):
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.move_leader("t", 0, 1)
        hints = [(7, "127.0.0.1", 9), (-1, "", -1), (1, "", 0)]

        def mislead(response) -> None:
            answer = response.responses[0].partition_responses[0]
            if answer.error_code and hints:
                node_id, host, port = hints.pop()
                answer.current_leader.leader_id = node_id
                answer.current_leader.leader_epoch = 99
                response.node_endpoints = [
                    ProduceResponse.NodeEndpoint(node_id=node_id, host=host, port=port)
                ]

        rewrite(mislead)
        deliveries = await send_numbers(producer, range(1, 4))

        found = await results(deliveries)
        assert not [end for end in found if isinstance(end, BaseException)]
        assert numbers(cluster) == [0, 1, 2, 3]


@pytest.mark.promise("KIPs", "KIP-467: errors of single records")
async def test_records_named_by_the_broker_fail_with_its_reason_and_the_others_are_sent_again(rewrite):
    async with producing(linger_ms=20) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)

        def name_records(response) -> None:
            answer = response.responses[0].partition_responses[0]
            answer.error_message = "two of them\x1b[31m"
            answer.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key"),
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message=None),
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=-1, batch_index_error_message="x"),
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=10**9, batch_index_error_message="x"),
            ]

        rewrite(name_records)
        found = await results(await send_numbers(producer, range(5)))

        assert [isinstance(error, DeliveryError) for error in found] == [False, True, False, True, False]
        assert {found[1].outcome, found[3].outcome} == {Outcome.NOT_PERSISTED}
        assert "no key" in str(found[1])
        assert "no key" not in str(found[3])
        assert "two of them" in str(found[3])
        assert "\x1b" not in str(found[3]), "control characters are escaped"
        assert [found[0].offset, found[2].offset, found[4].offset] == [0, 1, 2]
        assert numbers(cluster) == [0, 2, 4]
        assert batch_headers(cluster) == [(1, 0, 3)], "under a new epoch: their old numbers are void"
        snapshot = producer.metrics()
        assert (snapshot.records_acked, snapshot.records_failed) == (3, 2)


async def test_named_records_of_a_batch_in_doubt_are_not_sent_again(rewrite):
    """The first attempt may be in the log, so its records must not be sent under other sequence numbers."""
    async with producing(linger_ms=20) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)

        def name_a_record(response) -> None:
            response.responses[0].partition_responses[0].record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
            ]

        rewrite(name_a_record)
        found = await results(await send_numbers(producer, range(3)))

        assert {error.outcome for error in found} == {Outcome.UNKNOWN}
        assert numbers(cluster) == [0, 1, 2]


@in_virtual_time
async def test_named_records_that_may_be_in_a_deleted_topic_are_counted_as_unknown(rewrite):
    """The records are certainly not in the log of the new topic, but consumers may have read them in the old one."""
    async with producing(cluster={"versions": "4.1"}, linger_ms=20) as (cluster, producer):
        deliveries = await send_to_a_re_created_topic(cluster, producer, 3)

        def name_a_record(response) -> None:
            response.responses[0].partition_responses[0].record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
            ]

        rewrite(name_a_record)
        cluster.faults.clear()
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        found = await results(deliveries)

        assert [getattr(end, "outcome", None) for end in found] == [None, Outcome.UNKNOWN, None]
        measured = producer.metrics()
        assert (measured.records_acked, measured.records_failed, measured.records_unknown) == (2, 0, 1)
        (topic,) = measured.topics
        assert (topic.records_failed, topic.records_unknown) == (0, 1)


async def test_without_idempotence_the_others_are_also_sent_again(rewrite):
    async with producing(linger_ms=20, enable_idempotence=False) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_TIMESTAMP)

        def name_a_record(response) -> None:
            response.responses[0].partition_responses[0].record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="too old")
            ]

        rewrite(name_a_record)
        found = await results(await send_numbers(producer, range(3)))

        assert isinstance(found[0], DeliveryError)
        assert numbers(cluster) == [1, 2]


# ------------------------------------------------------------------------------------ replication (acks=all)


async def test_not_enough_replicas_is_retried():
    async with producing(brokers=3, cluster={"min_insync_replicas": 2}) as (cluster, producer):
        leader = cluster.leader("t", 0)
        cluster.set_isr("t", 0, [leader])
        delivery = await producer.send("t", b"v")
        await until(lambda: producer.metrics().errors.get("NOT_ENOUGH_REPLICAS", 0) >= 2)
        assert not delivery.done()

        cluster.set_isr("t", 0, [0, 1, 2])

        assert (await within(1, delivery)).offset == 0
        assert values(cluster) == [b"v"]


async def test_a_leader_that_moves_after_the_append_has_one_copy():
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, after_append=True)
        cluster.move_leader("t", 0, 0)

        deliveries = await send_numbers(producer, range(1, 6))

        assert await offsets(deliveries) == list(range(1, 6))
        assert numbers(cluster) == list(range(6))


async def test_records_missing_on_the_new_leader_are_sent_again_once():
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.hold_replication("t", 0)
        deliveries = await send_numbers(producer, range(1, 4))
        await until(lambda: cluster.log("t", 0).end_offset > 1)

        cluster.move_leader("t", 0, 1)
        cluster.release_replication("t", 0)

        assert await offsets(deliveries) == list(range(1, 4))
        assert numbers(cluster) == list(range(4))


@in_virtual_time
async def test_a_replication_timeout_is_retried_without_a_second_copy():
    settings = {"request_timeout_ms": 60_000 * MS}
    async with producing(brokers=2, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.hold_replication("t", 0)
        delivery = await producer.send("t", b"1")
        await until(lambda: producer.metrics().retries >= 1)

        cluster.release_replication("t", 0)

        assert (await within(1, delivery)).offset == 1
        assert numbers(cluster) == [0, 1]


# ------------------------------------------------------------------------------------------- damaged batches


async def test_a_corrupt_batch_is_sent_three_times_and_later_batches_continue():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.CORRUPT_MESSAGE, count=3)

        error = await error_of(producer.send_and_wait("t", b"1"), 1)

        assert type(error) is DeliveryError
        assert (error.attempts, error.outcome, error.last_error.code) == (3, Outcome.NOT_PERSISTED, 2)
        assert "damaged" not in str(error), "its own bytes are intact"
        assert (await producer.send_and_wait("t", b"2")).offset == 1
        assert numbers(cluster) == [0, 2]


async def test_other_answers_do_not_reset_the_count_of_corrupt_answers():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        for _ in range(3):
            cluster.faults.add(PRODUCE, error=ErrorCode.CORRUPT_MESSAGE)
            cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)

        error = await error_of(producer.send_and_wait("t", b"1"), 1)

        assert (error.attempts, error.outcome) == (5, Outcome.NOT_PERSISTED)
        cluster.faults.clear()


@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_a_batch_that_was_damaged_in_memory_fails_immediately_with_that_reason(codec):
    async with producing(compression_type=codec) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        damage_the_next_batch()

        error = await error_of(producer.send_and_wait("t", b"1" * 1000), 1)

        assert type(error) is DeliveryError
        assert (error.attempts, error.outcome) == (1, Outcome.NOT_PERSISTED)
        assert "no longer match their checksum" in str(error)
        assert "CORRUPT_MESSAGE" in str(error)
        assert (await producer.send_and_wait("t", b"2")).offset == 1
        assert numbers(cluster) == [0, 2]


def test_each_produce_action_of_the_table_has_exactly_one_method():
    keys = [key for key in TABLE if isinstance(key, tuple) and key[0] is ApiKey.PRODUCE]
    rules = [rule for key in keys for rule in TABLE[key]]
    actions = {rule.row.action for rule in (*rules, *UNKNOWN_CODES[ApiKey.PRODUCE])}

    assert set(ProduceResults.DO) == actions
    assert all(callable(method) for method in ProduceResults.DO.values())
