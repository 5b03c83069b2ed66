"""Sends a transaction's requests to its coordinator, one at a time, and applies the responses.

state.py decides what to send, and outcomes.py defines what a response means. `initialize`, `commit`, `abort`, `fence`
and `send_offsets` each run in their own task; `export`, `release` and `committed` run in the caller's, but the requests
of `export` are sent in their own tasks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from aioproducer.core import Core
from aioproducer.errors import (
    IllegalStateError,
    KafkaError,
    ProtocolError,
    TransactionError,
    TransactionReinitError,
    TransactionTimeoutError,
)
from aioproducer.network.brokers import Brokers
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from aioproducer.protocol.schema import Message
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.transactions.coordinator_messages import (
    Offsets,
    check_is_not_overtaken,
    committed_offsets,
    offset_commit,
    offset_fetch,
    partitions_to_add,
    worst_of_fetched,
    worst_of_offsets,
    worst_of_partitions,
)
from aioproducer.transactions.expiry import Expiry
from aioproducer.transactions.first_writer import FirstWriter
from aioproducer.transactions.requests import CoordinatorRequests
from aioproducer.transactions.running_calls import RunningCalls
from aioproducer.transactions.state import Transaction, TransactionState, abortable, reinit
from aioproducer.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionHandle,
)

FEATURE = "transaction.version"


class Coordinator:
    """Carries out a producer's transactional calls at the coordinator. Belongs to one event loop."""

    def __init__(
        self,
        core: Core,
        transaction: Transaction,
        idempotence: Idempotence,
        accumulator: Accumulator,
        brokers: Brokers,
    ) -> None:
        self._config = core.config
        self._log = core.config.log(__name__)
        self._transaction = transaction
        self._idempotence = idempotence
        self._accumulator = accumulator
        self._brokers = brokers
        self._wake = core.wake
        requests = partial(CoordinatorRequests, core.config, transaction, brokers, core.metrics, core.random)
        self._requests = requests()
        self._questions = requests()
        """Sends the requests for committed(), which may have to wait until a transaction ends and must not delay the
        request that ends it."""
        self._calls = RunningCalls(core, transaction)
        self.call_watch = self._calls.watch
        self.expiry = Expiry(core, transaction, self._calls, self._log, self._abort_expired)
        self._first_writer: FirstWriter | None = None
        """Set for a participant that must check that its partitions have no other writer before they join."""
        self._offset_calls = itertools.count()
        self._offsets_lock = asyncio.Lock()
        """Held while a call sends offsets, because the next call must know whether the outcome of this one is in
        doubt."""

    # ------------------------------------------------------------------------------------------ the user's calls

    async def initialize(self) -> None:
        """Get a producer id and epoch for the transactional id. The request aborts an older producer's open
        transaction."""
        transaction = self._transaction
        if self._calls.running("initialize") is None:
            transaction.check(
                "init_transactions",
                TransactionState.UNINITIALIZED,
                TransactionState.READY,
                TransactionState.OUTCOME_UNKNOWN,
                TransactionState.REINIT_REQUIRED,
            )
            before = transaction.state
            if not transaction.rejects_records:
                transaction.move(TransactionState.INITIALIZING)
            await self._calls.run("initialize", lambda: self._initialize(before))
        else:
            await self._calls.join("initialize")

    async def commit(self) -> None:
        """Send the buffered records and commit.

        If commit() raises an error, nothing was committed, unless the error's outcome is UNKNOWN."""
        if self._calls.take_unseen_success("commit"):
            return
        if self._calls.running("commit") is None:
            self._transaction.check(
                "commit_transaction", TransactionState.IN_TRANSACTION, TransactionState.OUTCOME_UNKNOWN
            )
            self._transaction.move(TransactionState.COMMITTING)
        await self._calls.run("commit", self._commit)

    async def abort(self) -> None:
        """Discard the buffered records, wait for those in flight, and abort."""
        transaction = self._transaction
        if self._calls.take_unseen_success("abort"):
            return
        if self._calls.running("abort") is None:
            if transaction.state is not TransactionState.ABORT_REQUIRED:
                again = () if self._calls.running("fence") else (TransactionState.ABORTING,)
                transaction.check(
                    "abort_transaction", TransactionState.IN_TRANSACTION, TransactionState.RELEASING, *again
                )
            if transaction.state is not TransactionState.ABORTING:
                transaction.move(TransactionState.ABORTING)
        await self._calls.run("abort", self._abort)

    async def fence(self) -> None:
        """Abort by taking a new epoch, which fences every writer that still uses the old one, including
        participants."""
        transaction = self._transaction
        if self._calls.take_unseen_success("fence"):
            return
        if self._calls.running("fence") is None:
            aborting = self._calls.running("abort")
            if aborting is not None:
                number = transaction.number
                await asyncio.wait([aborting])
                if transaction.number != number:
                    return  # the transaction was aborted, and another one has begun
                if transaction.state is TransactionState.READY or self._calls.running("initialize"):
                    await self.initialize()  # a second fence() joins this call
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
        await self._calls.run("fence", self._fence)

    async def export(self, partitions: Iterable[TopicPartition]) -> TransactionHandle:
        """Return a handle to the open transaction; with v1, the partitions join the transaction first."""
        transaction = self._transaction
        transaction.check("export", TransactionState.IN_TRANSACTION)
        partitions = list(partitions)
        await self._epoch_settled("export")
        self._check_has_no_writer(partitions)
        if not transaction.numbered.keys().isdisjoint(partitions):
            self._check_may_change_epoch(partitions)
            await self._calls.run("epoch", self._change_epoch)
            transaction.check("export", TransactionState.IN_TRANSACTION)
            self._check_has_no_writer(partitions)  # a partition may have gained a writer in the meantime
        self._has_begun()
        transaction.epoch_is_spent = True
        if not transaction.is_v2:
            for place in partitions:
                if place not in transaction.partitions:
                    transaction.wanted[place] = None
            while transaction.has_to_join:
                await self._calls.run("partitions", self._add_partitions)
            transaction.check("export", TransactionState.IN_TRANSACTION)
            self._check_has_no_writer(partitions)  # a partition may have gained a writer in the meantime
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
                f"export: {taken[0].topic}-{taken[0].partition} was already written to or exported; in a transaction, "
                "each partition can have only one writer"
            )

    def _check_may_change_epoch(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise IllegalStateError if the transaction may have begun at the coordinator: a new epoch would then abort
        it."""
        transaction = self._transaction
        if transaction.may_have_started or transaction.wanted or self._calls.others("offsets"):
            place = next(place for place in partitions if place in transaction.numbered)
            raise IllegalStateError(
                f"export: {place.topic}-{place.partition} was written to in an earlier transaction of the same "
                "producer epoch, so a participant's first records would count as duplicates; call export_transaction() "
                "before the first send() or send_offsets_to_transaction() of the transaction, so that it can take a "
                "new epoch"
            )

    async def _change_epoch(self) -> None:
        """Take a new epoch inside a transaction that the coordinator does not know about yet."""
        transaction = self._transaction
        transaction.changes_epoch = True
        try:
            await self._next_epoch()
        except KafkaError as error:
            self._not_reinitialized(error)
            self._raise(error)
        finally:
            transaction.changes_epoch = False

    async def _epoch_settled(self, call: str) -> None:
        """Wait for any epoch change in progress to end, so that no later request contains the old epoch."""
        change = self._calls.running("epoch")
        if change is not None:
            await asyncio.wait([change])
            self._transaction.check(call, TransactionState.IN_TRANSACTION)

    def _has_begun(self) -> None:
        """Record that the coordinator is about to learn of the transaction. From now on, the sender watches the
        time-out."""
        self._transaction.coordinator_hears()
        self._wake.set()

    def _handle(self) -> TransactionHandle:
        transaction, identity = self._transaction, self._identity
        return TransactionHandle(
            transaction.transactional_id,
            identity.producer_id,
            identity.epoch,
            transaction.is_v2,
            transaction.may_have_started,
            tuple(
                (group_id, place, offset)
                for group_id, offsets in transaction.doubtful_offsets.items()
                for place, offset in offsets.items()
            ),
        )

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        """Add a consumer group's offsets to the transaction. The caller has checked that the transaction is open."""
        if offsets:
            await self._epoch_settled("send_offsets_to_transaction")
            await self._calls.run(
                f"offsets {next(self._offset_calls)}", lambda: self._send_offsets(offsets, group)
            )

    def add_partitions(self) -> None:
        """Add the wanted partitions in the background (v1), and set the wake-up event when they have joined."""
        if self._calls.running("partitions") is None and not self._calls.is_closing:
            self._calls.start("partitions", self._add_partitions())

    async def release(self) -> TransactionHandle:
        """Release the open transaction to the producer that will resume and end it."""
        transaction = self._transaction
        transaction.check("release_transaction", TransactionState.IN_TRANSACTION)
        # From now on, no record is accepted, since a later one might not be acknowledged before the release.
        transaction.move(TransactionState.RELEASING)
        try:
            await self._settled()
        except BaseException:
            if transaction.state is TransactionState.RELEASING:
                transaction.move(TransactionState.IN_TRANSACTION)
                self._wake.set()  # the time-out may have passed in the meantime
            raise
        transaction.check("release_transaction", TransactionState.RELEASING)
        transaction.move(TransactionState.UNINITIALIZED)
        return self._handle()

    def resume(self, handle: TransactionHandle) -> None:
        """Take over the transaction that another producer has released."""
        self.attach(handle)
        self._transaction.resume(handle)

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return a group's committed offsets, once no open transaction can change them."""
        places = list(dict.fromkeys(partitions))
        request = offset_fetch(group_id, places)
        answer = await self._questions.ask(request, partial(worst_of_fetched, places), group=group_id)
        return committed_offsets(answer)

    def attach(self, handle: TransactionHandle, first_writer: FirstWriter | None = None) -> None:
        """Use the producer id and epoch of the transaction's owner."""
        self._first_writer = first_writer
        self._adopt(ProducerIdentity(handle.producer_id, handle.epoch, True))

    async def ended(self) -> None:
        """Wait for the running calls and ignore their results."""
        await self._calls.ended()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        await self._calls.close()

    # ----------------------------------------------------------------------------------------- the work of the calls

    async def _initialize(self, before: TransactionState) -> None:
        transaction = self._transaction
        if transaction.state is not TransactionState.INITIALIZING:
            # All requests under the old epoch must be answered before the new one is used.
            self._wake.set()
            await self._settled()
            transaction.move(TransactionState.INITIALIZING)
        try:
            await self._new_epoch(None)
        except TransactionReinitError as error:
            transaction.require_reinit(error)
            raise
        except BaseException as error:
            if before is TransactionState.UNINITIALIZED:
                transaction.move(TransactionState.UNINITIALIZED)
            elif before is TransactionState.READY:
                transaction.require_reinit(reinit(transaction, TransactionReinitError, str(error)))
            else:  # a new epoch was already needed, and transaction.error says why
                transaction.move(TransactionState.REINIT_REQUIRED)
            raise
        transaction.move(TransactionState.READY)

    async def _new_epoch(self, known: ProducerIdentity | None, deadline: float | None = None) -> None:
        """Send InitProducerId. With `known`, get the epoch that follows it; only `_next_epoch` may pass `known`."""
        request = InitProducerIdRequest(
            transactional_id=self._transaction.transactional_id,
            transaction_timeout_ms=round(self._config.transaction_timeout * 1000),
            producer_id=known.producer_id if known else -1,
            producer_epoch=known.epoch if known else -1,
        )
        response = await self._ask(request, lambda answer: answer.error_code, deadline=deadline)
        if response.producer_id < 0 or response.producer_epoch < 0:
            raise ProtocolError(
                f"the coordinator returned producer id {response.producer_id} and epoch {response.producer_epoch}; "
                "both must be 0 or more"
            )
        self._adopt(ProducerIdentity(response.producer_id, response.producer_epoch, True))

    def _adopt(self, identity: ProducerIdentity) -> None:
        self._idempotence.use(identity)
        self._transaction.epoch_changed()

    async def _add_partitions(self) -> None:
        transaction = self._transaction
        try:
            while transaction.has_to_join:
                places = sorted(transaction.wanted)
                if self._first_writer is not None:
                    await self._first_writer.check(places)
                else:
                    self._has_begun()
                    request = partitions_to_add(transaction.transactional_id, self._identity, places)
                    await self._ask(request, partial(worst_of_partitions, places))
                transaction.add_joined(places)
                self._wake.set()
        except KafkaError as error:
            self._failed(error)
        except Exception as error:
            # This is a bug. The transaction must fail, or the sender would start this call again and again.
            self._log.exception(
                "partitions could not be added to the transaction of %r", transaction.transactional_id
            )
            self._failed(KafkaError(f"partitions could not be added to the transaction: {error!r}"))

    async def _send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        async with self._offsets_lock:
            await self._send_offsets_locked(offsets, group)

    async def _send_offsets_locked(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        transaction = self._transaction
        doubtful = transaction.doubtful_offsets.setdefault(group.group_id, {})
        try:
            check_is_not_overtaken(offsets, group.group_id, doubtful)
            self._has_begun()
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
                offset_commit(transaction.transactional_id, self._identity, offsets, group),
                partial(worst_of_offsets, offsets),
                group=group.group_id,
            )
            if self._requests.was_in_doubt:
                doubtful.update(offsets)
        except KafkaError as error:
            self._failed(error)
            self._raise(error)

    async def _commit(self) -> None:
        transaction = self._transaction
        await self._settled()
        if transaction.state is not TransactionState.COMMITTING:
            assert transaction.error is not None  # a record or a request has failed
            raise transaction.error
        try:
            if transaction.may_have_started:  # if not, the coordinator does not know of the transaction
                await self._end(commit=True)
        except asyncio.CancelledError:
            # Only close() cancels this task.
            if self._requests.written or transaction.commit_is_in_doubt:
                transaction.require_reinit(
                    self._requests.outcome_unknown("the producer was closed before the answer arrived")
                )
            raise
        except KafkaError as error:
            self._failed(error)
            self._raise(error)
        if not transaction.role.stays_after_end:
            transaction.move(TransactionState.UNINITIALIZED)
            return
        self._look_for_v2()
        if transaction.needs_epoch:
            transaction.move(TransactionState.INITIALIZING)
            try:
                await self._next_epoch()
            except KafkaError as error:
                # The transaction is committed; the next begin_transaction() raises this error.
                self._not_reinitialized(error)
            except asyncio.CancelledError:  # close() has cancelled this task, so no other transaction follows
                self._not_reinitialized(KafkaError("the producer was closed before it got a new epoch"))
        if not transaction.rejects_records:
            transaction.move(TransactionState.READY)

    def _look_for_v2(self) -> None:
        """Let the next transaction begin with a new epoch, and thus use v2, if the cluster has been upgraded to v2."""
        transaction = self._transaction
        if transaction.epoch_began_v1 and self._brokers.finalized_feature(FEATURE) >= 2:
            transaction.epoch_is_spent = True

    async def _next_epoch(self) -> None:
        """Take the next epoch while no transaction is open.

        InitProducerId with (producer id, epoch) aborts any open transaction before the coordinator compares epochs.
        If this producer had been fenced without knowing it, the request would abort its successor's transaction.
        Therefore an EndTxn that aborts is sent first: it has nothing to abort, but the coordinator checks its epoch and
        rejects a fenced producer."""
        deadline = asyncio.get_running_loop().time() + self._config.max_block
        await self._end(commit=False)
        if not self._transaction.is_v2:  # with v2, the response to the abort contains the next epoch
            await self._new_epoch(self._identity, deadline=deadline)

    def _not_reinitialized(self, error: KafkaError) -> None:
        if not isinstance(error, TransactionReinitError):
            error = reinit(self._transaction, TransactionReinitError, str(error))
        self._transaction.require_reinit(error)

    async def _abort(self) -> None:
        transaction = self._transaction
        await self._end_what_is_buffered()
        self._look_for_v2()
        try:
            if transaction.may_have_started or transaction.needs_epoch:
                await self._end(commit=False)
            if transaction.needs_epoch and transaction.role.stays_after_end:
                transaction.move(TransactionState.INITIALIZING)
                await self._next_epoch()  # markers can delay the response to the abort above
        except KafkaError as error:
            if isinstance(error, TransactionTimeoutError) and transaction.state is TransactionState.ABORTING:
                raise  # abort_transaction() can be called again
            self._not_reinitialized(error)
            self._raise(error)
        if not transaction.role.stays_after_end:
            transaction.move(TransactionState.UNINITIALIZED)
        elif transaction.state is not TransactionState.REINIT_REQUIRED:
            transaction.move(TransactionState.READY)

    async def _abort_expired(self) -> None:
        """Abort the transaction at the coordinator. It looks open to the user until abort_transaction() is called."""
        transaction = self._transaction
        await self._settled()
        if transaction.state is not TransactionState.ABORT_REQUIRED:
            return  # the user has called abort_transaction()
        try:
            await self._end(commit=False)
        except TransactionReinitError as error:
            transaction.require_reinit(error)
        except KafkaError as error:
            self._log.warning(
                "the transaction of %r has not been aborted yet: %s", transaction.transactional_id, error
            )
        else:
            transaction.may_have_started = False  # nothing is left to end at the coordinator

    async def _fence(self) -> None:
        transaction = self._transaction
        await self._end_what_is_buffered()
        transaction.move(TransactionState.INITIALIZING)
        try:
            await self._new_epoch(None)
        except KafkaError as error:
            self._not_reinitialized(error)
            self._raise(error)
        transaction.move(TransactionState.READY)

    async def _settled(self) -> None:
        """Wait until no records, partitions or offsets in the transaction are buffered or in flight."""
        await self._accumulator.flush()
        calls = self._calls.others("epoch", "partitions", "offsets", "expiry")
        if calls:
            await asyncio.wait(calls)

    async def _end_what_is_buffered(self) -> None:
        """Prepare an abort: let the sender fail the records that were not sent, and wait for the rest."""
        self._wake.set()
        await self._settled()
        if self._transaction.state is not TransactionState.ABORTING:  # the producer may have been fenced
            assert self._transaction.error is not None
            raise self._transaction.error

    async def _end(self, *, commit: bool) -> None:
        """Send EndTxn, and repeat the same request until it is answered."""
        transaction = self._transaction
        request = EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=commit,
        )
        response = await self._ask(
            request,
            lambda answer: answer.error_code,
            is_repetition=commit and transaction.commit_is_in_doubt,
        )
        if transaction.is_v2:
            if response.producer_id < 0 or response.producer_epoch < 0:
                # The transaction has ended as requested; only the epoch for the next transaction is missing.
                self._not_reinitialized(
                    ProtocolError("the coordinator ended the transaction but returned no new epoch")
                )
                return
            self._adopt(ProducerIdentity(response.producer_id, response.producer_epoch, True))

    async def _ask(self, request: Message, code_of: Callable[[Any], int], **options: Any) -> Any:
        """Call `CoordinatorRequests.ask` for a request that changes the transaction."""
        return await self._requests.ask(request, code_of, **options)

    @property
    def _identity(self) -> ProducerIdentity:
        identity = self._idempotence.identity
        assert identity is not None  # set by initialize(); later it is only replaced
        return identity

    def _failed(self, error: KafkaError) -> None:
        """Apply the failure of a request to the transaction."""
        if isinstance(error, TransactionReinitError):
            self._transaction.require_reinit(error)
        else:
            self._transaction.require_abort(
                error
                if isinstance(error, TransactionError) and error.requires_abort
                else abortable(self._transaction, error)
            )

    def _raise(self, error: KafkaError) -> NoReturn:
        """Raise the transaction's error, or `error` itself if the transaction has none.

        `error` becomes the cause of the transaction's error, unless that already has a cause.
        """
        reported = self._transaction.error or error
        if reported is not error and reported.__cause__ is None:
            raise reported from error
        raise reported
