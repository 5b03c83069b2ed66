"""Carries a transaction's requests to its coordinator and brings the answers back, one request at a time.

What to ask for is decided by transaction.py, what an answer means by outcomes.py. Each of the user's calls is a task of
its own here: a caller that is cancelled leaves it running, and the same call made again joins it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

from aioproducer.accumulator import Accumulator
from aioproducer.brokers import Brokers
from aioproducer.config import ProducerConfig
from aioproducer.coordinator_requests import CoordinatorRequests
from aioproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    MissingPartitionError,
    ProducerClosed,
    ProtocolError,
    TransactionError,
    TransactionReinitError,
    TransactionTimeoutError,
)
from aioproducer.idempotence import Idempotence, ProducerIdentity
from aioproducer.metrics import Metrics
from aioproducer.outcomes import (
    Action,
    decide,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.schema import Message
from aioproducer.tasks import new_task
from aioproducer.transaction import Transaction, TransactionState, abortable, reinit
from aioproducer.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionHandle,
)
from aioproducer.wakeup import WakeUp

logger = logging.getLogger(__name__)

FEATURE = "transaction.version"
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Coordinator:
    """The remote half of a producer's transactions. Belongs to one event loop."""

    def __init__(
        self,
        config: ProducerConfig,
        transaction: Transaction,
        idempotence: Idempotence,
        accumulator: Accumulator,
        brokers: Brokers,
        wake: WakeUp,
        metrics: Metrics,
        random: Random,
    ) -> None:
        self._config = config
        self._transaction = transaction
        self._idempotence = idempotence
        self._accumulator = accumulator
        self._brokers = brokers
        self._wake = wake
        self._metrics = metrics
        self._random = random
        self._requests = CoordinatorRequests(config, transaction, brokers, metrics, random)
        self._questions = CoordinatorRequests(config, transaction, brokers, metrics, random)
        """What waits for the end of a transaction must not keep that end waiting."""
        self._calls: dict[str, asyncio.Task[None]] = {}
        """The user's calls that are at work, by name."""
        self._is_closing = False
        """No call begins any more."""
        self._offset_calls = itertools.count()

    # ------------------------------------------------------------------------------------------ the user's calls

    async def initialize(self) -> None:
        """Get a producer id and epoch for the transactional id, and so end what an older producer left open."""
        transaction = self._transaction
        if self._running("initialize") is None:
            transaction.check(
                "init_transactions",
                TransactionState.UNINITIALIZED,
                TransactionState.READY,
                TransactionState.OUTCOME_UNKNOWN,
                TransactionState.REINIT_REQUIRED,
            )
            before = transaction.state
            if not transaction.refuses_records:
                transaction.move(TransactionState.INITIALIZING)
            await self._call("initialize", lambda: self._initialize(before))
        else:
            await self._call("initialize", self._never)

    async def commit(self) -> None:
        """Send what is buffered and commit, or raise: then nothing is committed, unless the error says UNKNOWN."""
        if self._running("commit") is None:
            self._transaction.check("commit_transaction", TransactionState.IN_TRANSACTION)
            self._transaction.move(TransactionState.COMMITTING)
        await self._call("commit", self._commit)

    async def abort(self) -> None:
        """Throw away what is buffered, wait for what is in flight, and abort."""
        transaction = self._transaction
        if self._running("abort") is None:
            if transaction.state is not TransactionState.ABORT_REQUIRED:
                again = () if self._running("fence") else (TransactionState.ABORTING,)
                transaction.check(
                    "abort_transaction", TransactionState.IN_TRANSACTION, TransactionState.RELEASING, *again
                )
            if transaction.state is not TransactionState.ABORTING:
                transaction.move(TransactionState.ABORTING)
        await self._call("abort", self._abort)

    async def fence(self) -> None:
        """Abort by a new epoch: whoever still writes under the old one, participants included, is shut out."""
        transaction = self._transaction
        if self._running("fence") is None:
            aborting = self._running("abort")
            if aborting is not None:
                number = transaction.number
                await asyncio.wait([aborting])
                if transaction.number != number:
                    return  # it was aborted, and another one has begun
                if transaction.state is TransactionState.READY or self._running("initialize"):
                    await self.initialize()  # a second fence joins it
                    return
            if transaction.state is not TransactionState.ABORT_REQUIRED:
                transaction.check(
                    "fence_transaction",
                    TransactionState.IN_TRANSACTION,
                    TransactionState.RELEASING,
                    TransactionState.ABORTING,
                )
            if transaction.state is not TransactionState.ABORTING:
                transaction.move(TransactionState.ABORTING)
        await self._call("fence", self._fence)

    async def export(self, partitions: Iterable[TopicPartition]) -> TransactionHandle:
        """The open transaction as a value; with v1 the partitions join it first."""
        transaction = self._transaction
        transaction.check("export", TransactionState.IN_TRANSACTION)
        partitions = list(partitions)
        self._check_has_no_writer(partitions)
        transaction.may_have_started = transaction.epoch_is_spent = True
        if not transaction.is_v2:
            for place in partitions:
                if place not in transaction.partitions:
                    transaction.wanted[place] = None
            while transaction.has_to_join:
                await self._call("partitions", self._add_partitions)
            transaction.check("export", TransactionState.IN_TRANSACTION)
            self._check_has_no_writer(partitions)  # it may have one by now
        transaction.exported.update(dict.fromkeys(partitions))
        return self._handle()

    def _check_has_no_writer(self, partitions: Iterable[TopicPartition]) -> None:
        transaction = self._transaction
        taken = [
            place
            for place in partitions
            if place in transaction.written
            or place in transaction.exported
            or self._accumulator.holds(*place)
        ]
        if taken:
            raise IllegalStateError(
                f"export: {taken[0].topic}-{taken[0].partition} was written to or exported already; in a transaction "
                "each partition has one writer"
            )

    def _handle(self) -> TransactionHandle:
        transaction, identity = self._transaction, self._identity
        return TransactionHandle(
            transaction.transactional_id, identity.producer_id, identity.epoch, transaction.is_v2
        )

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        """Let a consumer group's offsets become part of the transaction."""
        self._transaction.check("send_offsets_to_transaction", TransactionState.IN_TRANSACTION)
        if offsets:
            await self._call(
                f"offsets {next(self._offset_calls)}", lambda: self._send_offsets(offsets, group)
            )

    def add_partitions(self) -> None:
        """With v1: let the wanted partitions join, in the background. Sets the wake-up event when they have."""
        if self._running("partitions") is None and not self._is_closing:
            self._start("partitions", self._add_partitions())

    async def release(self) -> TransactionHandle:
        """Give the open transaction away: whoever resumes it ends it."""
        transaction = self._transaction
        transaction.check("release_transaction", TransactionState.IN_TRANSACTION)
        transaction.move(TransactionState.RELEASING)  # what comes now would not be acknowledged in time
        try:
            await self._settled()
        except BaseException:
            if transaction.state is TransactionState.RELEASING:
                transaction.move(TransactionState.IN_TRANSACTION)
            raise
        transaction.check("release_transaction", TransactionState.RELEASING)
        transaction.move(TransactionState.UNINITIALIZED)
        return self._handle()

    def resume(self, handle: TransactionHandle) -> None:
        """Own the transaction that another producer has released."""
        self.attach(handle)
        self._transaction.resume(handle)

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What a group has committed, once no open transaction can change it."""
        places = list(dict.fromkeys(partitions))
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        request = OffsetFetchRequest(
            group_id=group_id,
            # Named: asked for all, a group whose first offset is pending is said to have none.
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in topics.items()
            ],
            require_stable=True,
        )
        answer = await self._questions.ask(request, partial(_worst_of_fetched, places), group=group_id)
        return {
            TopicPartition(topic.name, partition.partition_index): (
                None
                if partition.committed_offset < 0
                else OffsetAndMetadata(
                    partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                )
            )
            for topic in answer.topics
            for partition in topic.partitions
        }

    def attach(self, handle: TransactionHandle) -> None:
        """Number records as the transaction's owner would."""
        self._idempotence.identity = ProducerIdentity(handle.producer_id, handle.epoch, True)

    async def ended(self) -> None:
        """Wait for the calls that are at work, whatever comes of them."""
        await asyncio.gather(*self._calls.values(), return_exceptions=True)

    async def close(self) -> None:
        """Leave no task."""
        self._is_closing = True
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        call = self._running(name)
        if call is None:
            if self._is_closing:
                raise ProducerClosed("the producer was closed during a transactional call")
            call = self._start(name, work())
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not call.cancelled() or (caller is not None and caller.cancelling()):
                raise  # the caller was cancelled; the call goes on
            # close() has ended it. Whoever waits was not cancelled, and has to hear of it.
            error = self._transaction.error
            if isinstance(error, CommitOutcomeUnknownError):
                raise error from None
            raise ProducerClosed("the producer was closed during a transactional call") from None

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        call = new_task(asyncio.get_running_loop(), work, f"aioproducer-transaction-{name}")
        self._calls[name] = call
        call.add_done_callback(lambda done: self._ended(name, done))
        return call

    def _running(self, name: str) -> asyncio.Task[None] | None:
        """The call of that name that has not ended; one that has just done so is nothing to be joined."""
        call = self._calls.get(name)
        return call if call is not None and not call.done() else None

    def _ended(self, name: str, call: asyncio.Task[None]) -> None:
        if self._calls.get(name) is call:
            del self._calls[name]
        self._wake.set()
        if not call.cancelled():
            call.exception()  # whoever called has it; if nobody waits any more, the state says it too

    # ------------------------------------------------------------------------------------------ what they consist of

    async def _never(self) -> None:
        raise AssertionError("a call that is at work is joined, not begun")

    async def _initialize(self, before: TransactionState) -> None:
        transaction = self._transaction
        if transaction.state is not TransactionState.INITIALIZING:
            # What is in flight belongs to the old epoch: its answers must not meet the new one.
            self._wake.set()
            await self._settled()
            transaction.move(TransactionState.INITIALIZING)
        try:
            await self._new_epoch(None)
        except TransactionReinitError as error:
            transaction.must_reinit(error)
            raise
        except BaseException as error:
            if before is TransactionState.UNINITIALIZED:
                transaction.move(TransactionState.UNINITIALIZED)
            elif before is TransactionState.READY:
                transaction.must_reinit(reinit(transaction, TransactionReinitError, str(error)))
            else:  # it was needed already, and the error says why
                transaction.move(TransactionState.REINIT_REQUIRED)
            raise
        transaction.move(TransactionState.READY)

    async def _new_epoch(self, known: ProducerIdentity | None) -> None:
        """InitProducerId. With `known`, the epoch after that one, which is safe only after an answered abort (KIP-360):
        from a producer that was fenced without knowing it, the request would abort its successor's transaction."""
        request = InitProducerIdRequest(
            transactional_id=self._transaction.transactional_id,
            transaction_timeout_ms=round(self._config.transaction_timeout * 1000),
            producer_id=known.producer_id if known else -1,
            producer_epoch=known.epoch if known else -1,
        )
        response = await self._ask(request, lambda answer: answer.error_code)
        if response.producer_id < 0 or response.producer_epoch < 0:
            raise ProtocolError(
                f"the coordinator gave the producer id {response.producer_id} and epoch {response.producer_epoch}"
            )
        self._idempotence.identity = ProducerIdentity(response.producer_id, response.producer_epoch, True)

    async def _add_partitions(self) -> None:
        transaction = self._transaction
        try:
            while transaction.has_to_join:
                places = sorted(transaction.wanted)
                topics: dict[str, list[int]] = {}
                for topic, partition in places:
                    topics.setdefault(topic, []).append(partition)
                transaction.may_have_started = True
                await self._ask(
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=transaction.transactional_id,
                        v3_and_below_producer_id=self._identity.producer_id,
                        v3_and_below_producer_epoch=self._identity.epoch,
                        v3_and_below_topics=[
                            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                                name=topic, partitions=partitions
                            )
                            for topic, partitions in topics.items()
                        ],
                    ),
                    partial(_worst_of_partitions, places),
                )
                transaction.joined(places)
                self._wake.set()
        except KafkaError as error:
            self._failed(error)
        except Exception as error:  # a bug of ours; without an end the sender would ask again and again
            logger.exception("partitions could not join the transaction of %r", transaction.transactional_id)
            self._failed(KafkaError(f"partitions could not join the transaction: {error!r}"))

    async def _send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        transaction = self._transaction
        try:
            transaction.may_have_started = True
            if not transaction.is_v2 and group.group_id not in transaction.groups:
                await self._ask(
                    AddOffsetsToTxnRequest(
                        transactional_id=transaction.transactional_id,
                        producer_id=self._identity.producer_id,
                        producer_epoch=self._identity.epoch,
                        group_id=group.group_id,
                    ),
                    lambda answer: answer.error_code,
                )
                transaction.groups[group.group_id] = None
            await self._ask(
                self._offset_commit(offsets, group), partial(_worst_of_offsets, offsets), group=group.group_id
            )
        except KafkaError as error:
            self._failed(error)
            raise transaction.error or error from error

    def _offset_commit(self, offsets: Offsets, group: ConsumerGroupMetadata) -> TxnOffsetCommitRequest:
        topics: dict[str, TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            if topic not in topics:
                topics[topic] = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic)
            topics[topic].partitions.append(
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=self._transaction.transactional_id,
            group_id=group.group_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=list(topics.values()),
        )

    async def _commit(self) -> None:
        transaction = self._transaction
        await self._settled()
        if transaction.state is not TransactionState.COMMITTING:
            assert transaction.error is not None  # a record has failed
            raise transaction.error
        try:
            if transaction.may_have_started:  # else the coordinator knows of no transaction
                await self._end(commit=True)
        except asyncio.CancelledError:
            # Only close() cancels this task.
            if self._requests.written:
                transaction.must_reinit(
                    self._requests.outcome_unknown("the producer was closed before the answer came")
                )
            raise
        except KafkaError as error:
            self._failed(error)
            raise transaction.error or error from error
        if transaction.is_resumed:
            transaction.move(TransactionState.UNINITIALIZED)
            return
        if transaction.needs_epoch:
            try:
                await self._next_epoch()
            except KafkaError as error:
                # What was to be committed is; the next transaction will hear of this.
                self._not_reinitialized(error)
            except asyncio.CancelledError:  # by close(): there is no next transaction
                self._not_reinitialized(KafkaError("the producer was closed before it had a new epoch"))
        if not transaction.refuses_records:
            transaction.move(TransactionState.READY)

    async def _next_epoch(self) -> None:
        self._transaction.move(TransactionState.INITIALIZING)
        await self._new_epoch(self._identity)

    def _not_reinitialized(self, error: KafkaError) -> None:
        if not isinstance(error, TransactionReinitError):
            error = reinit(self._transaction, TransactionReinitError, str(error))
        self._transaction.must_reinit(error)

    async def _abort(self) -> None:
        transaction = self._transaction
        await self._end_what_is_buffered()
        try:
            if transaction.may_have_started:
                await self._end(commit=False)
            if transaction.needs_epoch and not transaction.is_resumed:
                await self._next_epoch()
        except KafkaError as error:
            if isinstance(error, TransactionTimeoutError) and transaction.state is TransactionState.ABORTING:
                raise  # it can be called again
            self._not_reinitialized(error)
            raise transaction.error or error from error
        if transaction.is_resumed:
            transaction.move(TransactionState.UNINITIALIZED)
        elif transaction.state is not TransactionState.REINIT_REQUIRED:
            transaction.move(TransactionState.READY)

    async def _fence(self) -> None:
        transaction = self._transaction
        await self._end_what_is_buffered()
        transaction.move(TransactionState.INITIALIZING)
        try:
            await self._new_epoch(None)
        except KafkaError as error:
            self._not_reinitialized(error)
            raise transaction.error or error from error
        transaction.move(TransactionState.READY)

    async def _settled(self) -> None:
        """Nothing of the transaction is on its way any more: no records, no partitions, no offsets."""
        await self._accumulator.flush()
        calls = [
            call
            for name, call in self._calls.items()
            if name.startswith(("partitions", "offsets")) and not call.done()
        ]
        if calls:
            await asyncio.wait(calls)

    async def _end_what_is_buffered(self) -> None:
        """Before an abort: the sender gives up what was not sent, and the rest is waited for."""
        self._wake.set()
        await self._settled()
        if self._transaction.state is not TransactionState.ABORTING:  # a record was fenced meanwhile
            assert self._transaction.error is not None
            raise self._transaction.error

    async def _end(self, *, commit: bool) -> None:
        """EndTxn, always the same one until it is answered."""
        transaction = self._transaction
        request = EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=commit,
        )
        try:
            response = await self._ask(request, lambda answer: answer.error_code)
        finally:
            # With v1 a delayed copy of it could end the next transaction of the same epoch (KAFKA-17754).
            transaction.epoch_is_spent |= self._requests.was_in_doubt
        if transaction.is_v2:
            if response.producer_id < 0 or response.producer_epoch < 0:
                # It has ended, as was asked; what is missing is the next one's.
                self._not_reinitialized(
                    ProtocolError("the coordinator ended the transaction and gave no new epoch")
                )
                return
            self._idempotence.identity = ProducerIdentity(response.producer_id, response.producer_epoch, True)

    async def _ask(self, request: Message, code_of: Callable[[Any], int], *, group: str | None = None) -> Any:
        return await self._requests.ask(request, code_of, group=group)

    @property
    def _identity(self) -> ProducerIdentity:
        identity = self._idempotence.identity
        assert identity is not None  # initialize() gave it, and only another one takes its place
        return identity

    def _failed(self, error: KafkaError) -> None:
        """What a refused request means for the transaction."""
        if isinstance(error, TransactionReinitError):
            self._transaction.must_reinit(error)
        else:
            self._transaction.must_abort(
                error
                if isinstance(error, TransactionError) and error.requires_abort
                else abortable(self._transaction, error)
            )


def _worst_of_partitions(asked: Iterable[TopicPartition], response: AddPartitionsToTxnResponse) -> int:
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }
    return _worst(ApiKey.ADD_PARTITIONS_TO_TXN, asked, codes)


def _worst_of_offsets(asked: Iterable[TopicPartition], response: TxnOffsetCommitResponse) -> int:
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    return _worst(ApiKey.TXN_OFFSET_COMMIT, asked, codes)


def _worst_of_fetched(asked: Iterable[TopicPartition], response: OffsetFetchResponse) -> int:
    if response.error_code:
        return response.error_code
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    return _worst(ApiKey.OFFSET_FETCH, asked, codes)


_SEVERITY = (Action.SUCCEED, Action.RETRY, Action.COORDINATOR, Action.ABORT, Action.FAIL, Action.REINIT)


def _worst(api: ApiKey, asked: Iterable[TopicPartition], codes: Mapping[TopicPartition, int]) -> int:
    """The code that decides: OPERATION_NOT_ATTEMPTED, for one, only says that another partition was refused.

    Raises:
        MissingPartitionError: the answer leaves out one of those that were asked.
    """
    missing = [place for place in asked if place not in codes]
    if missing:
        topic, partition = missing[0]
        raise MissingPartitionError(f"the coordinator left {topic}-{partition} out of its answer")
    return max(codes.values(), key=lambda code: _SEVERITY.index(decide(api, code).action), default=0)
