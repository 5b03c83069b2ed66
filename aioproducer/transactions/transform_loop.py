"""The consume-transform-produce loop: each input record takes effect exactly once.

TransformLoop reads batches from a consumer; a TransformBatch is one transaction with the records that the program
sends and the consumer's new offsets. `consumers` adapts the two kinds of consumers; nothing here touches a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from types import MappingProxyType, TracebackType
from typing import Any, Self

from aioproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidArgumentError,
    KafkaError,
    TransactionTimeoutError,
)
from aioproducer.network.backoff import exponential
from aioproducer.transactions.calls import Transactional, consists_of_kafka_errors, to_the_end
from aioproducer.transactions.consumers import Input, Positions, Records, input_of
from aioproducer.transactions.state import TransactionState
from aioproducer.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""The first and the longest pause, in seconds, before a batch is retried; the pause doubles with each failure."""

_OPEN = (
    TransactionState.IN_TRANSACTION,
    TransactionState.RELEASING,
    TransactionState.ABORT_REQUIRED,
    TransactionState.ABORTING,
)


class TransformLoop:
    """Reads records, sends the program's records and commits the offsets, all in one transaction per batch.

        async with Producer("localhost:9092", transactional_id="billing-1") as producer:
            async with TransformLoop(producer, consumer, ["orders"]) as batches:
                async for batch in batches:
                    async with batch:
                        for record in batch:
                            await producer.send("invoices", invoice(record.value), key=record.key)

    The transaction is committed when the inner block ends. If the commit fails, the transaction is aborted, the
    consumer is rewound, and the loop returns the records again, possibly in other batches; `batch.is_committed` is
    False after such a block. If your own code raises an exception, the transaction is also aborted and the consumer
    rewound; the exception then leaves the block.

    The commit contains the member id and the generation that the consumer had when it read the records (KIP-447).
    So a member that has lost its partitions in a rebalance cannot commit. In a rebalance, aiokafka's consumer keeps its
    partitions until the batch in progress has ended; confluent-kafka's is not polled until then.

    Each newly assigned partition starts at the group's committed offset, which is read only after the transactions that
    can still change it have ended. If no offset is committed, the consumer's `auto_offset_reset` decides.

    If the producer is fenced, because another process uses its transactional id, the loop ends with
    ProducerFencedError, and does not take the id back. If a commit gets no response, the loop repeats it to learn its
    outcome.
    """

    def __init__(
        self,
        producer: Transactional,
        consumer: object,
        topics: Iterable[str],
        *,
        max_records: int = 500,
        poll_timeout: float = 1.0,
        max_attempts: int = 10,
    ) -> None:
        """Create the loop; `async with` subscribes the consumer.

        Args:
            producer: a started producer with its own transactional_id, which nothing else uses while the loop runs.
            consumer: aiokafka's AIOKafkaConsumer (started) or confluent-kafka's Consumer. It needs a group id,
                enable.auto.commit=false, and isolation.level=read_committed if its input is transactional. The loop
                replaces its subscription.
            topics: the topics to read.
            max_records: the maximum number of records in a batch.
            poll_timeout: the maximum time to wait for records, in seconds; `stop()` takes effect within this time.
            max_attempts: the number of failed attempts in a row, without a rebalance, after which the last error is
                raised.

        Raises:
            InvalidArgumentError: an argument is invalid.
        """
        if not isinstance(producer, Transactional):
            raise InvalidArgumentError(
                f"producer must be an aioproducer.Producer, not {type(producer).__name__}"
            )
        if isinstance(topics, str | bytes):
            raise InvalidArgumentError(f"topics must be a list of topic names, not {topics!r}")
        self._topics = list(topics)
        if not self._topics or not all(isinstance(topic, str) for topic in self._topics):
            raise InvalidArgumentError(f"topics must be a list of topic names, not {self._topics!r}")
        if max_records < 1 or max_attempts < 1 or poll_timeout <= 0:
            raise InvalidArgumentError(
                f"max_records={max_records} and max_attempts={max_attempts} must be at least 1, "
                f"and poll_timeout={poll_timeout:g} must be above 0"
            )
        self._producer = producer
        self._consumer = consumer
        self._max_records = max_records
        self._poll_timeout = poll_timeout
        self._max_attempts = max_attempts
        self._input: Input | None = None
        self._batch: TransformBatch | None = None
        """The batch that was returned last."""
        self._idle = asyncio.Event()
        """Set while no batch is open."""
        self._idle.set()
        self._attempts = 0
        """Failed attempts in a row since assignment change number `_attempts_since`."""
        self._attempts_since = 0
        self._is_stopping = False
        self._failure: BaseException | None = None
        """The error that has ended the loop."""

    def stop(self) -> None:
        """End the `async for` before its next batch; the batch in progress is committed."""
        self._is_stopping = True

    async def __aenter__(self) -> Self:
        self._producer._check_usable()
        if not self._producer._transaction.is_used:
            raise IllegalStateError("a TransformLoop requires a producer with a transactional_id")
        if self._input is not None:
            raise IllegalStateError("a TransformLoop can be entered only once; create another one")
        self._input = input_of(self._consumer, _PositionsOfLoop(self))
        await self._input.subscribe(self._topics)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_stopping = True
        self._idle.set()
        assert self._input is not None
        await self._input.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransformBatch:
        if self._input is None:
            raise IllegalStateError(
                "enter the TransformLoop with `async with` before you read batches from it"
            )
        if self._failure is not None:
            raise copy(self._failure)
        if self._batch is not None and not self._batch.has_begun:
            raise IllegalStateError(
                "the last batch was not entered with `async with batch`, so its records would be lost"
            )
        if self._attempts and self._input.changes == self._attempts_since:
            await asyncio.sleep(exponential(FIRST_PAUSE, LONGEST_PAUSE, self._attempts - 1))
        while not self._is_stopping:
            records = await self._input.poll(self._max_records, self._poll_timeout)
            if records:
                if self._input.changes != self._attempts_since:
                    self._attempts, self._attempts_since = 0, self._input.changes
                self._batch = TransformBatch(self, self._input, records, attempt=self._attempts + 1)
                return self._batch
        raise StopAsyncIteration

    # For batches

    async def _begin(self) -> None:
        try:
            await self._producer.begin_transaction()
        except KafkaError as error:
            self._raise_if_final(error)
            raise
        self._idle.clear()

    async def _end(self, batch: TransformBatch, error: BaseException | None) -> bool:
        """Commit the batch, or abort it and rewind. Return True if the block's error is to be suppressed."""
        # A KafkaError from the block may only show that the transaction has failed, just as a failed commit would.
        is_broken = self._producer._transaction.state is TransactionState.ABORT_REQUIRED
        may_retry = error is None or (is_broken and consists_of_kafka_errors(error))
        failure = error
        try:
            if error is None:
                try:
                    await to_the_end(self._commit(batch))
                    return False
                except (KafkaError, asyncio.CancelledError) as failed:
                    failure = failed
            assert failure is not None
            if not batch.is_committed:
                self._raise_if_final(failure)
                await to_the_end(self._undo(batch))
        finally:
            self._idle.set()
        if isinstance(failure, IllegalStateError) and error is None:
            self._failure = failure  # the block has ended the transaction itself
        elif may_retry and not isinstance(failure, asyncio.CancelledError):
            self._attempts += 1
            if self._attempts < self._max_attempts:
                self._producer._log.warning(
                    "a batch of a TransformLoop was aborted and will be read again (attempt %d of %d): %s",
                    self._attempts,
                    self._max_attempts,
                    failure,
                )
                return True
        if error is None:
            raise failure
        return False

    async def _commit(self, batch: TransformBatch) -> None:
        producer = self._producer
        assert batch.membership is not None
        await producer.send_offsets_to_transaction(batch.offsets, batch.membership)
        unanswered = 0
        while True:
            try:
                await producer.commit_transaction()
                break
            except CommitOutcomeUnknownError as error:
                unanswered += 1
                if unanswered >= self._max_attempts:
                    raise
                producer._log.warning("the commit of a TransformLoop's batch is being repeated: %s", error)
        batch.is_committed = True
        self._attempts = 0
        assert self._input is not None
        for place in batch.offsets:
            self._input.starts.pop(place, None)

    async def _undo(self, batch: TransformBatch) -> None:
        """Abort, and rewind the consumer to the first record of each partition of the batch.

        The group's committed offset is at or before this record, with no other record between them.
        """
        assert self._input is not None
        try:
            await self._abort()
            # After a change of the assignment, the partitions get their positions from the committed offsets.
            if batch.changes == self._input.changes:
                await self._input.seek(batch.starts)
        except BaseException as error:
            # The loop must not go on: the consumer's next records come after those of this batch.
            self._failure = error
            raise

    async def _abort(self) -> None:
        for attempt in range(1, self._max_attempts + 1):
            if self._producer._transaction.state not in _OPEN:
                return
            try:
                await self._producer.abort_transaction()
            except TransactionTimeoutError as error:
                if attempt == self._max_attempts:
                    raise
                self._producer._log.warning(
                    "the abort of a TransformLoop's batch is being repeated: %s", error
                )

    def _raise_if_final(self, error: BaseException) -> None:
        """End the loop if this producer epoch cannot be used again.

        Raises:
            TransactionReinitError: the underlying error, even if `error` is another KafkaError that resulted from it.
        """
        transaction = self._producer._transaction
        if transaction.state not in (TransactionState.REINIT_REQUIRED, TransactionState.OUTCOME_UNKNOWN):
            return
        self._failure = transaction.error or error
        if isinstance(error, KafkaError) and error.requires_reinit:
            raise error
        if consists_of_kafka_errors(error):
            raise copy(self._failure) from error


class _PositionsOfLoop(Positions):
    """Implements Positions for a TransformLoop."""

    def __init__(self, loop: TransformLoop) -> None:
        self._loop = loop

    async def of(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        loop = self._loop
        wanted = list(partitions)
        while True:
            try:
                committed = await loop._producer.committed(group, wanted)
                break
            except TransactionTimeoutError as error:
                if loop._is_stopping:
                    raise
                loop._producer._log.warning(
                    "a TransformLoop is waiting for the committed offsets of group %r: %s", group, error
                )
        assert loop._input is not None
        starts = loop._input.starts
        found: dict[TopicPartition, int] = {}
        for place, position in committed.items():
            if position is not None:
                starts.pop(place, None)
                found[place] = position.offset
            elif place in starts:
                found[place] = starts[place]
        return found

    async def until_idle(self) -> None:
        await self._loop._idle.wait()

    def warn(self, text: str) -> None:
        self._loop._producer._log.warning("%s", text)


class TransformBatch:
    """The records of one transaction: iterate over them inside `async with batch`."""

    def __init__(self, loop: TransformLoop, source: Input, records: Records, *, attempt: int) -> None:
        self.records: Mapping[TopicPartition, Sequence[Any]] = MappingProxyType(records)
        """The consumer's own record objects, by partition, in the order of their offsets."""
        self.attempt = attempt
        """1 plus the number of attempts that have failed since the last commit or rebalance."""
        self.has_begun = False
        self.is_committed = False
        """True once the transaction has been committed."""
        self.offsets: Mapping[TopicPartition, OffsetAndMetadata] = {
            place: source.position_after(found[-1]) for place, found in records.items()
        }
        """The offsets that the transaction commits."""
        self.starts = {place: source.offset_of(found[0]) for place, found in records.items()}
        self.changes = source.changes
        self.membership: ConsumerGroupMetadata | None = source.membership
        """The consumer's membership when it read the records."""
        self._loop = loop

    def __iter__(self) -> Iterator[Any]:
        for found in self.records.values():
            yield from found

    def __len__(self) -> int:
        return sum(map(len, self.records.values()))

    async def __aenter__(self) -> Self:
        if self.has_begun:
            raise IllegalStateError(
                "a batch can be entered only once; if it fails, the loop returns its records again"
            )
        await self._loop._begin()
        self.has_begun = True
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return await self._loop._end(self, error)
