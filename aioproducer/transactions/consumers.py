"""The two consumers that a TransformLoop reads from: aiokafka's AIOKafkaConsumer and confluent-kafka's Consumer.

Neither library is imported here: a consumer is recognised by its methods. An Input tracks the assignment, and sets
the position of each newly assigned partition before it returns any of its records."""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any, TypeAlias

from aioproducer.concurrency.tasks import ended
from aioproducer.concurrency.threads import DaemonThreads
from aioproducer.errors import IllegalStateError, InvalidArgumentError, KafkaError
from aioproducer.transactions.offsets import group_metadata
from aioproducer.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Records: TypeAlias = dict[TopicPartition, list[Any]]
"""The consumer's own record objects, by partition."""

_SEEK_PAUSE, _SEEK_TIMEOUT = 0.02, 5.0
"""How long to wait, in seconds, before seeking again in a partition that librdkafka has not started yet, and how long
to keep trying."""


class Positions(ABC):
    """The methods that an Input needs from its loop."""

    @abstractmethod
    async def of(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets at which to start reading. Partitions for which the consumer decides are left out."""

    @abstractmethod
    async def until_idle(self) -> None:
        """Wait until no batch is being processed."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Write a warning to the log."""


class Input(ABC):
    """A consumer that is a member of a group."""

    def __init__(self, positions: Positions) -> None:
        self.changes = 0
        """The number of assignment changes so far. It is incremented before the member releases any partitions."""
        self.membership: ConsumerGroupMetadata | None = None
        """The membership at the last change. It is not read again for a commit: by then, the consumer may be in a
        later generation, in which another member owns the partitions of the records."""
        self.starts: dict[TopicPartition, int] = {}
        """The first offset read from each partition since the last commit."""
        self._positions = positions

    @abstractmethod
    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe the consumer to these topics."""

    @abstractmethod
    async def poll(self, max_records: int, timeout: float) -> Records:
        """Return the next records, or none after `timeout` seconds or a rebalance. Cancelling does not lose records."""

    @abstractmethod
    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Make the consumer read these partitions from these offsets onwards. The partitions must be assigned."""

    @abstractmethod
    def offset_of(self, record: Any) -> int:
        """Return the offset of a record."""

    @abstractmethod
    def position_after(self, record: Any) -> OffsetAndMetadata:
        """Return the position of a group that has processed the record."""

    @abstractmethod
    async def close(self) -> None:
        """End all waits. The consumer stays subscribed."""

    def _note_starts(self, records: Records) -> None:
        for place, found in records.items():
            self.starts.setdefault(place, self.offset_of(found[0]))


def input_of(consumer: object, positions: Positions) -> Input:
    """Return the Input for a consumer.

    Raises:
        InvalidArgumentError: the object is not a consumer, or its settings would break exactly-once processing.
    """
    if hasattr(consumer, "getmany") and hasattr(consumer, "subscribe"):
        return _AiokafkaInput(consumer, positions)
    if hasattr(consumer, "consume") and hasattr(consumer, "consumer_group_metadata"):
        if asyncio.iscoroutinefunction(consumer.consume):
            raise InvalidArgumentError(
                "confluent-kafka's AIOConsumer is not supported; pass a confluent_kafka.Consumer, which is polled in "
                "its own thread"
            )
        return _ConfluentInput(consumer, positions)
    raise InvalidArgumentError(
        f"consumer must be aiokafka's AIOKafkaConsumer or confluent-kafka's Consumer, not {type(consumer).__name__}"
    )


def _library(consumer: object, name: str) -> ModuleType:
    """Return the consumer's library: a package that defines one of its classes and has an attribute with this name."""
    for base in type(consumer).__mro__:
        module = sys.modules.get(base.__module__.partition(".")[0])
        if module is not None and hasattr(module, name):
            return module
    module = sys.modules.get("confluent_kafka")  # its classes report the module cimpl
    if module is not None and hasattr(module, name):
        return module
    raise InvalidArgumentError(f"the library of {type(consumer).__name__} has no {name}")


# aiokafka


class _AiokafkaInput(Input):
    """aiokafka's consumer, which rebalances in the background, on this event loop."""

    def __init__(self, consumer: Any, positions: Positions) -> None:
        super().__init__(positions)
        self._consumer = consumer
        self._is_assigned = False
        self._unpositioned: list[TopicPartition] = []
        self._changed = asyncio.Event()
        if getattr(consumer, "_enable_auto_commit", False):
            raise InvalidArgumentError(
                "the consumer must have enable_auto_commit=False; otherwise, it would commit offsets outside the "
                "transactions"
            )
        if getattr(consumer, "_group_id", "") is None:
            raise InvalidArgumentError("the consumer must have a group_id")

    async def subscribe(self, topics: Sequence[str]) -> None:
        listener = _listener(self._consumer, self._revoked, self._assigned)
        self._consumer.subscribe(list(topics), listener=listener)

    async def _revoked(self) -> None:
        """Let the batch in progress end before the member rejoins: until then, the batch's commit is accepted."""
        self.changes += 1
        self._is_assigned = False
        await self._positions.until_idle()

    def _assigned(self, partitions: Iterable[Any]) -> None:
        coordinator = getattr(self._consumer, "_coordinator", None)
        try:
            self.membership = ConsumerGroupMetadata(
                coordinator.group_id,  # type: ignore[union-attr]  # absent in other versions of aiokafka
                coordinator.generation,  # type: ignore[union-attr]
                coordinator.member_id,  # type: ignore[union-attr]
                getattr(coordinator, "_group_instance_id", None),
            )
        except AttributeError:
            self.membership = None
        self.changes += 1
        self._unpositioned = [TopicPartition(place.topic, place.partition) for place in partitions]
        self._is_assigned = True
        self._changed.set()

    async def poll(self, max_records: int, timeout: float) -> Records:
        changes = self.changes
        if self._unpositioned:
            await self._position()
        elif not self._is_assigned:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                timeout = 0  # getmany() raises the errors of the group, if there are any
            else:
                return {}
        if self.changes != changes:
            return {}
        found = await self._consumer.getmany(timeout_ms=round(timeout * 1000), max_records=max_records)
        records = {
            TopicPartition(place.topic, place.partition): list(part) for place, part in found.items() if part
        }
        self._note_starts(records)
        # Records from before an assignment change are read again. A partition without a committed offset then starts
        # at its offset in `starts`.
        return records if self.changes == changes and self._is_assigned else {}

    async def _position(self) -> None:
        if self.membership is None:
            raise IllegalStateError(
                "this version of aiokafka does not expose the consumer's generation and member id; without them, a "
                "consumer that has lost its partitions could still commit"
            )
        changes, wanted = self.changes, self._unpositioned
        positions = await self._positions.of(self.membership.group_id, wanted)
        if self.changes == changes:
            await self.seek(positions)
            self._unpositioned = []

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        assigned = {(place.topic, place.partition): place for place in self._consumer.assignment()}
        for place, offset in positions.items():
            if place in assigned:
                self._consumer.seek(assigned[place], offset)

    def offset_of(self, record: Any) -> int:
        return int(record.offset)

    def position_after(self, record: Any) -> OffsetAndMetadata:
        return OffsetAndMetadata(record.offset + 1)

    async def close(self) -> None:
        self._changed.set()


def _listener(
    consumer: object, revoked: Callable[[], Awaitable[None]], assigned: Callable[[Iterable[Any]], None]
) -> object:
    """Return a rebalance listener, which must be an instance of the library's class."""
    base = _library(consumer, "ConsumerRebalanceListener").ConsumerRebalanceListener

    async def on_partitions_revoked(self: object, partitions: Iterable[Any]) -> None:
        await revoked()

    async def on_partitions_assigned(self: object, partitions: Iterable[Any]) -> None:
        assigned(partitions)

    methods = {
        "on_partitions_revoked": on_partitions_revoked,
        "on_partitions_assigned": on_partitions_assigned,
    }
    return type("TransformLoopListener", (base,), methods)()


# confluent-kafka


class _ConfluentInput(Input):
    """confluent-kafka's consumer, whose calls block: one thread polls it, and it also rebalances in that thread."""

    def __init__(self, consumer: Any, positions: Positions) -> None:
        super().__init__(positions)
        self._consumer = consumer
        self._library = _library(consumer, "TopicPartition")
        self._thread = DaemonThreads(1, "aioproducer-consumer")
        self._loop = asyncio.get_running_loop()
        self._polling: asyncio.Future[tuple[int, list[Any]]] | None = None
        # Set by the callbacks, which run in the thread during _consume().
        self._assigned: dict[TopicPartition, None] = {}
        self._asking: Future[dict[TopicPartition, int]] | None = None
        self._failure: BaseException | None = None
        self._is_incremental = False
        self._is_closed = False

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function in the thread and wait until it returns, even if the caller is cancelled."""
        running = self._loop.run_in_executor(self._thread, call, *arguments)
        cancelled = await ended(running)
        if cancelled is not None:
            raise cancelled
        return running.result()

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self._in_thread(self._subscribe, list(topics))

    def _subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_revoke(self, consumer: Any, partitions: Iterable[Any]) -> None:
        self.changes += 1
        for place in partitions:
            self._assigned.pop(TopicPartition(place.topic, place.partition), None)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        if self._is_closed:
            return  # The library assigns the partitions itself.
        self.changes += 1
        try:
            self.membership = group_metadata(consumer.consumer_group_metadata())
            places = [TopicPartition(place.topic, place.partition) for place in partitions]
            asking = self._positions.of(self.membership.group_id, places)
            self._asking = asyncio.run_coroutine_threadsafe(asking, self._loop)
            positions = self._asking.result()
        except BaseException as error:
            self._failure = error  # poll() raises it: an exception would not propagate from this callback
            return
        for place in partitions:
            place.offset = positions.get(TopicPartition(place.topic, place.partition), place.offset)
        self._assigned.update(dict.fromkeys(places))
        self._assign(partitions)

    def _assign(self, partitions: list[Any]) -> None:
        """Assign the partitions as the group's protocol requires; only librdkafka knows which protocol that is."""
        if not self._is_incremental:
            try:
                self._consumer.assign(partitions)
                return
            except self._library.KafkaException as error:
                if error.args[0].name() != "_STATE":
                    raise
                self._is_incremental = True  # cooperative rebalances
        self._consumer.incremental_assign(partitions)

    async def poll(self, max_records: int, timeout: float) -> Records:
        if self._polling is None:
            self._polling = self._loop.run_in_executor(self._thread, self._consume, max_records, timeout)
        # A call that is cancelled, here or in _put_back(), leaves the poll and its records to the next call.
        await asyncio.wait([self._polling])
        try:
            changes, messages = self._polling.result()
        except BaseException:
            self._polling = None
            raise
        if self._failure is not None:
            raise self._failure
        records: Records = {}
        for message in messages:
            self._check(message.error())
            if message.error() is None:
                records.setdefault(TopicPartition(message.topic(), message.partition()), []).append(message)
        self._note_starts(records)
        if self.changes != changes:
            await self._put_back(records)
            records = {}
        self._polling = None
        return records

    def _consume(self, max_records: int, timeout: float) -> tuple[int, list[Any]]:
        return self.changes, self._consumer.consume(max_records, timeout)

    def _check(self, error: Any) -> None:
        """Raise if the consumer has failed or lacks a permission; librdkafka handles all other errors itself."""
        if error is None or error.name() == "_PARTITION_EOF":
            return
        if error.fatal() or error.name().endswith("AUTHORIZATION_FAILED"):
            raise KafkaError(f"the consumer has failed: {error}")
        self._positions.warn(f"the consumer reports an error: {error}")

    async def _put_back(self, records: Records) -> None:
        """Make the consumer reread the records that it returned before or between assignment changes."""
        if self.membership is not None and records:
            positions = await self._positions.of(self.membership.group_id, records)
            await self.seek(positions)

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        await self._in_thread(self._seek, positions)

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        give_up = time.monotonic() + _SEEK_TIMEOUT
        for place, offset in positions.items():
            while place in self._assigned:
                try:
                    self._consumer.seek(self._library.TopicPartition(place.topic, place.partition, offset))
                    break
                except self._library.KafkaException as error:
                    if error.args[0].name() != "_STATE" or time.monotonic() > give_up:
                        raise
                    time.sleep(_SEEK_PAUSE)  # librdkafka has not started this newly assigned partition yet.

    def offset_of(self, record: Any) -> int:
        return int(record.offset())

    def position_after(self, record: Any) -> OffsetAndMetadata:
        epoch = record.leader_epoch() if hasattr(record, "leader_epoch") else None
        return OffsetAndMetadata(record.offset() + 1, "", -1 if epoch is None else epoch)

    async def close(self) -> None:
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
        cancelled = None
        if self._polling is not None:
            cancelled = await ended(self._polling)
        self._thread.shutdown(wait=False)
        if cancelled is not None:
            raise cancelled
