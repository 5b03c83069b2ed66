"""A transaction's requests to its coordinator: their answers, a new producer epoch, unseen successes, and close()."""

from __future__ import annotations

import asyncio
import gc

import pytest

from aioproducer import (
    CommitOutcomeUnknownError,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionAbortableError,
)
from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    IllegalStateError,
    KafkaError,
    ProducerClosed,
    ProtocolError,
    TransactionReinitError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    OffsetFetchResponse,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.schema import Message
from aioproducer.records._record_path import Gate
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.state import Transaction, TransactionState
from tests.conftest import in_virtual_time
from tests.support.accumulator_bench import Bench, turns
from tests.support.producing import error_of
from tests.transactions.test_calls import committed, transactional

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
GROUP = ConsumerGroupMetadata("g")


class Cluster:
    """Stub brokers that answer each transactional request; the error code of each partition's offset can be set."""

    def __init__(self) -> None:
        self.asked: list[ApiKey] = []
        self.requests: list[Message] = []
        self.code_of_init = 0
        self.producer_id = 7
        self.epoch = 5
        self.epoch_after_end: int | None = None
        self.fetch_codes = [0, 0]
        self.committed_offsets: list[int] = [-1, -1]
        self.offset_codes: list[int] = [0, 0]
        self.committed_metadata: str | None = ""
        self.code_of_end = 0
        self.is_silent = False
        self.may_answer = asyncio.Event()
        """Requests are answered while this event is set."""
        self.may_answer.set()
        self.lost_answers: list[ApiKey] = []
        """For each entry, the connection is lost during one request of that API."""
        self.has_coordinator = True

    def finalized_feature(self, name):
        return 1

    async def request_any(self, request, timeout, **_):
        if not self.has_coordinator:
            await asyncio.Event().wait()
        return FindCoordinatorResponse(node_id=1, host="broker.example", port=9092)

    async def request_node(self, node_id, request, timeout, *, about_to_write, **_):
        about_to_write()
        self.asked.append(ApiKey(request.api_key))
        self.requests.append(request)
        if self.is_silent:
            await asyncio.Event().wait()
        await self.may_answer.wait()
        if request.api_key in self.lost_answers:
            self.lost_answers.remove(request.api_key)
            raise BrokerConnectionError("the connection was lost", written=True)
        if request.api_key == ApiKey.TXN_OFFSET_COMMIT:
            partitions = [
                TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                    partition_index=number, error_code=code
                )
                for number, code in enumerate(self.offset_codes)
            ]
            topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name="t", partitions=partitions)
            return TxnOffsetCommitResponse(topics=[topic])
        if request.api_key == ApiKey.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnResponse()
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(
                error_code=self.code_of_init, producer_id=self.producer_id, producer_epoch=self.epoch
            )
        if request.api_key == ApiKey.OFFSET_FETCH:
            places = [
                OffsetFetchResponse.OffsetFetchResponsePartition(
                    partition_index=number,
                    committed_offset=offset,
                    metadata=self.committed_metadata,
                    error_code=self.fetch_codes[number],
                )
                for number, offset in enumerate(self.committed_offsets)
            ]
            return OffsetFetchResponse(
                topics=[OffsetFetchResponse.OffsetFetchResponseTopic(name="t", partitions=places)]
            )
        if request.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                                partition_index=partition
                            )
                            for partition in topic.partitions
                        ],
                    )
                    for topic in request.v3_and_below_topics
                ]
            )
        assert request.api_key == ApiKey.END_TXN
        epoch = request.producer_epoch + 1 if self.epoch_after_end is None else self.epoch_after_end
        return EndTxnResponse(error_code=self.code_of_end, producer_id=7, producer_epoch=epoch)


class Begun:
    """A coordinator with an open transaction, on a stub cluster."""

    def __init__(self, version: int = 2) -> None:
        self.bench = bench = Bench(transactional_id="tx", transaction_timeout_ms=10_000)
        self.cluster = Cluster()
        self.transaction = Transaction("tx", Gate())
        self.idempotence = Idempotence(True)
        self.idempotence.use(ProducerIdentity(7, 0, True))
        self.coordinator = Coordinator(
            bench.core, self.transaction, self.idempotence, bench.accumulator, self.cluster
        )
        self.transaction.move(TransactionState.INITIALIZING)
        self.transaction.move(TransactionState.READY)
        self.transaction.begin(is_v2=version == 2)

    async def send_offsets(self, offset: int = 17) -> None:
        offsets = {place: OffsetAndMetadata(offset) for place in PLACES}
        await self.coordinator.send_offsets(offsets, GROUP)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


# ----------------------------------------------------------------------------------------------------- requests


async def test_a_group_joins_once_and_only_with_v1():
    asked = {}
    for version in (1, 2):
        begun = Begun(version)
        await begun.send_offsets()
        await begun.send_offsets()
        asked[version] = begun.cluster.asked

    commit = ApiKey.TXN_OFFSET_COMMIT
    assert asked == {1: [ApiKey.ADD_OFFSETS_TO_TXN, commit, commit], 2: [commit, commit]}


async def test_the_worst_answer_of_all_partitions_decides(version):
    begun = Begun(version)
    passing, final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.GROUP_AUTHORIZATION_FAILED
    begun.cluster.offset_codes = [passing, final]

    error = await error_of(begun.send_offsets())

    assert isinstance(error, TransactionAbortableError)
    assert final.name in str(error)
    assert begun.cluster.asked.count(ApiKey.TXN_OFFSET_COMMIT) == 1, "transient errors are not waited for"


async def test_offsets_that_were_answered_may_be_sent_again_with_other_values(version):
    begun = Begun(version)
    await begun.send_offsets(17)

    await begun.send_offsets(18)

    last = begun.cluster.requests[-1].topics[0].partitions
    assert [partition.committed_offset for partition in last] == [18, 18]


async def test_an_offset_in_doubt_cannot_be_replaced_in_the_same_transaction(version):
    begun = Begun(version)
    begun.transaction.doubtful_offsets["g"] = {PLACES[0]: OffsetAndMetadata(17)}
    await begun.send_offsets(17)

    error = await error_of(begun.send_offsets(18))

    assert isinstance(error, TransactionAbortableError)
    assert "the offset 17 of t-0 was sent more than once for group 'g'" in str(error)
    assert begun.cluster.asked.count(ApiKey.TXN_OFFSET_COMMIT) == 1


async def test_another_offset_is_rejected_after_an_offset_whose_first_answer_was_lost(version):
    begun = Begun(version)
    begun.cluster.lost_answers = [ApiKey.TXN_OFFSET_COMMIT]
    await begun.send_offsets(17)
    assert begun.cluster.asked.count(ApiKey.TXN_OFFSET_COMMIT) == 2

    error = await error_of(begun.send_offsets(18))

    assert isinstance(error, TransactionAbortableError)
    assert "the offset 17 of t-0 was sent more than once" in str(error)
    assert begun.cluster.asked.count(ApiKey.TXN_OFFSET_COMMIT) == 2


async def test_offsets_carry_the_membership_of_their_consumer():
    begun = Begun()
    group = ConsumerGroupMetadata("g", 3, "member", "instance")

    await begun.coordinator.send_offsets({place: OffsetAndMetadata(17, "note", 5) for place in PLACES}, group)

    [request] = begun.cluster.requests
    assert (request.group_id, request.generation_id) == ("g", 3)
    assert (request.member_id, request.group_instance_id) == ("member", "instance")
    [topic] = request.topics
    for partition in topic.partitions:
        assert (partition.committed_metadata, partition.committed_leader_epoch) == ("note", 5)


async def test_offset_0_is_an_offset_and_negative_ones_are_not():
    begun = Begun()
    begun.cluster.committed_offsets = [0, -1]

    found = await begun.coordinator.committed("g", PLACES)

    assert found == {PLACES[0]: OffsetAndMetadata(0, "", -1), PLACES[1]: None}


async def test_committed_metadata_that_is_null_becomes_an_empty_string():
    begun = Begun()
    begun.cluster.committed_offsets = [17, 18]
    begun.cluster.committed_metadata = None

    found = await begun.coordinator.committed("g", PLACES)

    assert [offset.metadata for offset in found.values()] == ["", ""]


async def test_a_permanent_error_of_one_partition_ends_the_query_of_committed_offsets():
    begun = Begun()
    begun.cluster.fetch_codes = [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED]

    error = await error_of(begun.coordinator.committed("g", PLACES))

    assert "GROUP_AUTHORIZATION_FAILED" in str(error)
    assert begun.cluster.asked == [ApiKey.OFFSET_FETCH]


async def test_partitions_that_have_joined_are_exported_without_a_request():
    begun = Begun(1)
    begun.transaction.add_joined([PLACES[0]])

    handle = await begun.coordinator.export(PLACES)

    assert handle.producer_id == 7
    [request] = begun.cluster.requests
    assert [topic.partitions for topic in request.v3_and_below_topics] == [[1]]
    assert list(begun.transaction.exported) == PLACES


async def test_a_release_waits_for_the_partitions_of_a_cancelled_export():
    begun = Begun(1)
    begun.cluster.may_answer.clear()
    exporting = asyncio.ensure_future(begun.coordinator.export(PLACES))
    await turns()
    exporting.cancel()
    await asyncio.wait([exporting])

    releasing = asyncio.ensure_future(begun.coordinator.release())
    await turns()

    assert begun.cluster.asked == [ApiKey.ADD_PARTITIONS_TO_TXN]
    assert not releasing.done(), "the partitions could join after the next producer has committed"
    begun.cluster.may_answer.set()
    assert (await releasing).has_begun


async def test_an_export_takes_no_new_epoch_once_another_partition_is_about_to_join():
    begun = Begun(1)
    begun.transaction.numbered[PLACES[0]] = None
    assert not begun.transaction.admit(*PLACES[1])
    begun.coordinator.add_partitions()

    error = await error_of(begun.coordinator.export([TopicPartition("unwritten", 0), PLACES[0]]))

    assert isinstance(error, IllegalStateError)
    place = f"{PLACES[0].topic}-{PLACES[0].partition}"
    assert f"{place} was written to in an earlier transaction of the same producer epoch" in str(error)
    await begun.coordinator.ended()
    assert begun.cluster.asked == [ApiKey.ADD_PARTITIONS_TO_TXN]
    assert begun.transaction.state is TransactionState.IN_TRANSACTION


async def test_empty_offsets_send_no_request_and_do_not_begin_the_transaction(version):
    begun = Begun(version)

    await begun.coordinator.send_offsets({}, GROUP)

    assert begun.cluster.asked == []
    assert not begun.transaction.may_have_started


async def test_an_unexpected_error_while_joining_ends_the_transaction_and_is_not_retried(monkeypatch, caplog):
    async with transactional(1) as (cluster, producer):
        ask, asked = producer._brokers.request_node, []

        async def broken(node_id, message, timeout, **settings):
            if isinstance(message, AddPartitionsToTxnRequest):
                asked.append(message)
                raise ZeroDivisionError
            return await ask(node_id, message, timeout, **settings)

        await producer.begin_transaction()
        with monkeypatch.context() as patch:
            patch.setattr(producer._brokers, "request_node", broken)
            error = await error_of(await producer.send("t", b"1", partition=0))

        assert error.requires_abort
        assert len(asked) == 1
        assert "ZeroDivisionError" in caplog.text
        with pytest.raises(TransactionAbortableError, match="could not be added"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


# ------------------------------------------------------------------------------------------- a new producer epoch


def uninitialized(begun: Begun) -> Begun:
    begun.transaction = begun.coordinator._transaction = Transaction("tx", Gate())
    begun.coordinator._requests._transaction = begun.transaction
    return begun


async def test_initializing_sends_the_timeout_in_milliseconds_and_resets_every_sequence():
    begun = uninitialized(Begun())
    begun.transaction.numbered[PLACES[0]] = None
    begun.transaction.epoch_is_spent = True

    await begun.coordinator.initialize()

    [request] = begun.cluster.requests
    assert request.transaction_timeout_ms == 10_000
    assert begun.transaction.state is TransactionState.READY
    assert begun.idempotence.identity == ProducerIdentity(7, 5, True)
    assert not begun.transaction.numbered
    assert not begun.transaction.epoch_is_spent


async def test_a_failed_first_initialization_does_not_change_the_producer():
    begun = uninitialized(Begun())
    begun.cluster.producer_id = -1

    error = await error_of(begun.coordinator.initialize())

    assert isinstance(error, ProtocolError)
    assert begun.transaction.state is TransactionState.UNINITIALIZED


async def test_an_epoch_that_cannot_be_obtained_ends_the_export_and_the_producers_epoch(
    monkeypatch,
):
    begun = Begun(1)
    begun.transaction.numbered[PLACES[0]] = None
    begun.cluster.code_of_init = ErrorCode.INVALID_PRODUCER_EPOCH

    error = await error_of(begun.coordinator.export(PLACES))

    assert isinstance(error, TransactionReinitError)
    assert error is begun.transaction.error
    assert begun.transaction.state is TransactionState.REINIT_REQUIRED
    assert not begun.transaction.exported


async def test_an_export_that_gets_an_invalid_epoch_requires_init_transactions():
    begun = Begun(1)
    begun.transaction.numbered[PLACES[0]] = None
    begun.cluster.producer_id = -1

    error = await error_of(begun.coordinator.export(PLACES))

    assert isinstance(error, TransactionReinitError)
    assert error is begun.transaction.error
    assert "call init_transactions()" in str(error)


async def test_a_transaction_that_fails_while_an_epoch_is_obtained_is_not_exported():
    begun = Begun(1)
    begun.transaction.numbered[PLACES[0]] = None
    new_epoch = begun.coordinator._new_epoch

    async def fail_meanwhile(*arguments, **settings):
        await new_epoch(*arguments, **settings)
        begun.transaction.require_abort(TransactionAbortableError("a record failed"))

    begun.coordinator._new_epoch = fail_meanwhile

    error = await error_of(begun.coordinator.export(PLACES))

    assert "a record failed" in str(error)
    assert ApiKey.ADD_PARTITIONS_TO_TXN not in begun.cluster.asked


async def test_a_second_fence_joins_the_first_one_at_any_stage():
    begun = Begun()
    await begun.send_offsets()
    begun.cluster.is_silent = True
    begun.cluster.asked.clear()
    first = asyncio.ensure_future(begun.coordinator.fence())
    while not begun.cluster.asked:  # noqa: ASYNC110  # the stub sets no event
        await asyncio.sleep(0)
    assert begun.transaction.state is TransactionState.INITIALIZING

    second = asyncio.ensure_future(begun.coordinator.fence())
    await asyncio.sleep(0)
    assert not second.done()
    await begun.coordinator.close()

    for fence in (first, second):
        assert isinstance(await error_of(fence), ProducerClosed)
    assert begun.cluster.asked == [ApiKey.INIT_PRODUCER_ID]


async def test_a_fence_waits_until_the_buffered_records_have_failed():
    begun = Begun()
    await begun.send_offsets()
    begun.bench.send()
    begun.cluster.asked.clear()
    begun.bench.wake.counted()

    fencing = asyncio.ensure_future(begun.coordinator.fence())
    await turns()
    assert begun.cluster.asked == []
    assert begun.bench.wake.counted() > 0, "the sender fails the records"
    begun.bench.give_up(*begun.bench.drain_all())
    await fencing

    assert begun.cluster.asked == [ApiKey.INIT_PRODUCER_ID]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 5), (7, -1)])
async def test_a_fence_that_gets_no_epoch_raises_the_error_of_the_transaction(producer_id, epoch):
    begun = Begun()
    await begun.send_offsets()
    begun.cluster.producer_id, begun.cluster.epoch = producer_id, epoch

    error = await error_of(begun.coordinator.fence())

    assert isinstance(error, TransactionReinitError)
    assert error is begun.transaction.error
    assert begun.transaction.state is TransactionState.REINIT_REQUIRED


async def test_an_abort_is_rejected_while_a_fence_ends_the_transaction(version):
    begun = Begun(version)
    begun.cluster.may_answer.clear()
    sending = asyncio.ensure_future(begun.send_offsets())
    await turns()
    fencing = asyncio.ensure_future(begun.coordinator.fence())
    await turns()
    assert begun.transaction.state is TransactionState.ABORTING

    aborting = asyncio.ensure_future(error_of(begun.coordinator.abort()))
    await turns()
    begun.cluster.may_answer.set()

    assert isinstance(await aborting, IllegalStateError)
    await fencing
    assert ApiKey.END_TXN not in begun.cluster.asked
    assert begun.transaction.state is TransactionState.READY
    await asyncio.wait([sending])


# --------------------------------------------------------------------------------------------------------- close


async def test_an_unseen_success_is_forgotten_once_the_producer_was_initialized_again():
    begun = Begun()
    await begun.send_offsets()
    committing = asyncio.ensure_future(begun.coordinator.commit())
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    await begun.coordinator.ended()
    await begun.coordinator.initialize()

    assert isinstance(await error_of(begun.coordinator.commit()), IllegalStateError)


async def test_an_unseen_success_is_returned_when_the_same_call_is_made_again():
    begun = Begun()
    await begun.send_offsets()
    committing = asyncio.ensure_future(begun.coordinator.commit())
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    await begun.coordinator.ended()
    begun.cluster.asked.clear()

    await begun.coordinator.commit()

    assert begun.cluster.asked == []


async def test_a_commit_repeated_at_the_moment_of_its_success_sends_nothing(version):
    begun = Begun(version)
    await begun.send_offsets()
    begun.cluster.may_answer.clear()
    committing = asyncio.ensure_future(begun.coordinator.commit())
    await turns()
    committing.cancel()
    await asyncio.wait([committing])
    begun.cluster.may_answer.set()
    async with asyncio.timeout(2):
        while begun.transaction.state is not TransactionState.READY:  # noqa: ASYNC110  # an event would be too late
            await asyncio.sleep(0)
    assert "commit" in begun.coordinator._calls.by_name, (
        "the task has ended, and its callback has not run yet"
    )

    await begun.coordinator.commit()

    assert begun.cluster.asked.count(ApiKey.END_TXN) == 1


async def test_the_event_loop_reports_no_error_of_a_call_that_failed_after_its_caller_was_cancelled():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    begun = Begun()
    begun.cluster.offset_codes = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2
    begun.cluster.may_answer.clear()
    sending = asyncio.ensure_future(begun.send_offsets())
    await turns()
    sending.cancel()
    await asyncio.wait([sending])
    begun.cluster.may_answer.set()
    await turns()
    assert "GROUP_AUTHORIZATION_FAILED" in str(begun.transaction.error)

    del begun, sending
    gc.collect()

    assert complaints == []


async def test_calls_that_have_ended_leave_nothing_behind_and_cause_no_report():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    begun = Begun()
    for _ in range(3):
        await begun.send_offsets()
    begun.cluster.offset_codes = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2
    abandoned = asyncio.ensure_future(begun.send_offsets())
    await asyncio.sleep(0)
    abandoned.cancel()
    await asyncio.wait([abandoned])
    await begun.coordinator.ended()
    begun.cluster.is_silent = True
    aborting = asyncio.ensure_future(error_of(begun.coordinator.abort()))
    while begun.cluster.asked[-1] is not ApiKey.END_TXN:  # noqa: ASYNC110  # the stub sets no event
        await asyncio.sleep(0)
    await begun.coordinator.close()
    assert isinstance(await aborting, ProducerClosed)
    await asyncio.sleep(0)
    gc.collect()

    assert begun.coordinator._calls.by_name == {}
    assert begun.coordinator._calls._abandoned == set()
    assert complaints == []


async def test_close_ends_each_running_call_and_allows_no_new_one(version):
    begun = Begun(version)
    begun.cluster.is_silent = True
    waiting = asyncio.ensure_future(error_of(begun.send_offsets()))
    while not begun.cluster.asked:  # noqa: ASYNC110  # the stub sets no event
        await asyncio.sleep(0)

    await begun.coordinator.close()

    assert isinstance(await waiting, ProducerClosed)
    asked = list(begun.cluster.asked)
    assert isinstance(await error_of(begun.send_offsets()), ProducerClosed)
    assert isinstance(await error_of(begun.coordinator.commit()), KafkaError)
    begun.coordinator.add_partitions()
    await begun.coordinator.ended()
    assert begun.cluster.asked == asked


@in_virtual_time
async def test_a_commit_in_doubt_stays_so_if_close_ends_its_repetition():
    begun = Begun()
    await begun.send_offsets()
    begun.cluster.lost_answers = [ApiKey.END_TXN] * 10_000
    error = await error_of(begun.coordinator.commit(), seconds=100)  # max_block_ms is 60 s
    assert isinstance(error, CommitOutcomeUnknownError)
    begun.cluster.asked.clear()
    begun.cluster.has_coordinator = False

    repeating = asyncio.ensure_future(error_of(begun.coordinator.commit()))
    await turns()
    await begun.coordinator.close()

    error = await repeating
    assert isinstance(error, CommitOutcomeUnknownError)
    assert "the producer was closed before the answer arrived" in str(error)
    assert begun.transaction.state is TransactionState.OUTCOME_UNKNOWN
    assert begun.cluster.asked == [], "the repeated commit was not sent"


async def test_a_rejected_commit_names_the_answer_as_the_cause_of_its_error(version):
    begun = Begun(version)
    await begun.send_offsets()
    begun.cluster.code_of_end = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    error = await error_of(begun.coordinator.commit())

    assert error is begun.transaction.error
    assert isinstance(error.__cause__, BrokerError)
    assert error.__cause__.name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


@pytest.mark.parametrize("call", ["abort", "send_offsets"])
async def test_a_rejected_call_names_the_answer_as_the_cause_of_its_error(version, call):
    begun = Begun(version)
    await begun.send_offsets()
    begun.cluster.code_of_end = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    begun.cluster.offset_codes = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2

    error = await error_of(begun.coordinator.abort() if call == "abort" else begun.send_offsets())

    assert error is begun.transaction.error
    causes = []
    while error.__cause__ is not None:
        error = error.__cause__
        causes.append(error)
    assert isinstance(causes[-1], BrokerError)


async def test_a_commit_whose_answer_has_no_epoch_succeeds_and_requires_init_transactions():
    begun = Begun()
    await begun.send_offsets()
    begun.cluster.epoch_after_end = -1

    await begun.coordinator.commit()

    assert begun.transaction.state is TransactionState.REINIT_REQUIRED
    assert begun.idempotence.identity == ProducerIdentity(7, 0, True)


async def test_an_abort_whose_answer_has_no_epoch_succeeds_and_requires_init_transactions():
    begun = Begun()
    await begun.send_offsets()
    begun.cluster.epoch_after_end = -1

    await begun.coordinator.abort()

    assert begun.transaction.state is TransactionState.REINIT_REQUIRED
    begun.cluster.epoch_after_end = None
    await begun.coordinator.initialize()
    assert begun.transaction.state is TransactionState.READY


@in_virtual_time
async def test_an_abort_that_gets_no_answer_about_the_new_epoch_requires_init_transactions():
    begun = Begun(1)
    await begun.send_offsets()
    begun.transaction.epoch_is_spent = True
    begun.cluster.lost_answers = [ApiKey.INIT_PRODUCER_ID] * 10_000

    error = await error_of(begun.coordinator.abort(), seconds=100)  # max_block_ms is 60 s

    assert isinstance(error, TransactionReinitError)
    assert begun.transaction.state is TransactionState.REINIT_REQUIRED
    begun.cluster.lost_answers.clear()
    await begun.coordinator.initialize()
    assert begun.transaction.state is TransactionState.READY


async def test_an_abort_that_gets_no_epoch_raises_the_error_of_the_transaction():
    begun = Begun(1)
    await begun.send_offsets()
    begun.transaction.epoch_is_spent = True
    begun.cluster.producer_id = -1

    error = await error_of(begun.coordinator.abort())

    assert isinstance(error, TransactionReinitError)
    assert error is begun.transaction.error


async def test_an_abort_during_which_the_producer_is_fenced_raises_that_error(monkeypatch):
    begun = Begun()
    await begun.send_offsets()
    begun.cluster.asked.clear()
    fenced = TransactionReinitError("a record was fenced")

    async def settled():
        begun.transaction.require_reinit(fenced)

    monkeypatch.setattr(begun.coordinator, "_settled", settled)

    assert await error_of(begun.coordinator.abort()) is fenced
    assert begun.cluster.asked == []
