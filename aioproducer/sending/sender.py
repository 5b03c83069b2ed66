"""The sender task: waits for work, drains batches per node, and sends them.

One pass checks everything that may have changed, and never awaits. numbering.py decides which partitions may send a
batch now, produce_results.py handles the responses, and giving_up.py fails batches that get none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from aioproducer.core import Core
from aioproducer.errors import (
    KafkaError,
    UnsupportedVersionError,
)
from aioproducer.network.brokers import Brokers
from aioproducer.network.connection import Connection
from aioproducer.network.metadata import Metadata
from aioproducer.observe.loop_watch import LoopWatch
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.produce import Appended, ProduceBatches
from aioproducer.records._record_path import PartitionQueue
from aioproducer.records.accumulator import NO_NODE, Accumulator
from aioproducer.records.batch import NAMED, ProducerBatch
from aioproducer.records.idempotence import Idempotence
from aioproducer.sending.giving_up import GivingUp
from aioproducer.sending.numbering import Numbering
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.sending.producer_id import ProducerIdSource
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.state import Transaction

LAST_VERSION_WITH_TOPIC_NAMES = 12
LAST_VERSION_OF_V1 = 11
"""From version 12 on, a broker adds every written partition to the transaction, even if v2 is disabled."""
MOST_IN_REQUEST = 100
"""The maximum number of batches per request, so that other tasks can run: each batch takes about 15 us of the loop's
time, and its answer 10 us. This limit and the next do not apply to transactions, because a broker verifies the
partitions in one request together."""
ENOUGH_FOR_PASS = 50
"""The number of batches after which no further request is written in a pass."""
REQUEST_COST = 4
"""Each request counts as this many additional batches, because it takes as long as they do."""
UNREAD_ANSWER_GRACE = 0.05
"""Seconds to wait for responses that may still be unread in a socket."""


class Sender:
    """Moves batches from the accumulator to the brokers, and the results back to the deliveries."""

    def __init__(
        self,
        core: Core,
        accumulator: Accumulator,
        brokers: Brokers,
        metadata: Metadata,
        idempotence: Idempotence,
        transaction: Transaction,
        coordinator: Coordinator,
    ) -> None:
        self._config = config = core.config
        self._loop = core.loop
        self._accumulator = accumulator
        self._brokers = brokers
        self._metadata = metadata
        self._wake = core.wake
        self._metrics = core.metrics
        self._idempotence = idempotence
        self._transaction = transaction
        self._coordinator = coordinator
        self._request_timeout_ms = int(config.request_timeout * 1000)
        self._loop_watch = LoopWatch(core.loop, config.log(__name__), lambda: accumulator.incomplete)
        self._seen_metadata = -1
        self._left_in_pass = 0
        self._last_records = 0
        """The number of records in the last request."""
        self._context = copy_context()
        self._error: Exception | None = None
        """The exception that ended a pass in send_alone(); the task raises it."""
        self._begun: set[int] = set()
        """The nodes that this producer has begun to write to as a participant in another producer's transaction."""
        self._results = ProduceResults(core, accumulator, brokers, metadata, idempotence, transaction)
        self._producer_ids = ProducerIdSource(core, idempotence, brokers)
        self._numbering = Numbering(core, accumulator, metadata, idempotence, transaction, self._results)
        self._giving_up = GivingUp(
            config, accumulator, brokers, metadata, self._producer_ids, self._numbering, self._results
        )

    def abort(self, reason: str) -> None:
        """Fail all remaining batches. close() calls this after it has waited for them."""
        # If the user closes the producer without committing, these records are meant to be aborted.
        self._giving_up.abort_all(reason, is_wanted=self._transaction.is_uncommitted)

    # ---------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Run one pass after another until close() cancels the task."""
        try:
            while True:
                self._wake.clear()
                if self._error is not None:
                    raise self._error
                await self._wake.sleep(until=self._pass(self._loop.time()))
        except BaseException as error:
            # A GeneratorExit means that the task is discarded with its loop, so nothing can be awaited.
            if not isinstance(error, GeneratorExit):
                self._wake.close()
                self._loop_watch.close()
                await self._producer_ids.close()
            raise

    def send_alone(self) -> None:
        """Run a pass for the only record in the buffer, in the turn of the loop in which it was appended.

        Called by `send_and_wait`. This sends the record one turn of the loop earlier than the task would. If the last
        request contained several records, other tasks are sending too, so the pass is left to the task, which sends
        their records together.
        """
        if self._last_records != 1:
            return
        self._wake.clear()
        try:
            # Tasks that the pass starts, and the user's functions that they call, must not see the caller's context.
            self._wake.set_at(self._context.run(self._pass, self._loop.time()))
        except Exception as error:
            self._error = error  # raised in the task, not in the caller's `send_and_wait`
            self._wake.set()

    def _pass(self, now: float) -> float | None:
        """Send everything that can be sent. Return the loop time of the next pass; the sender may be woken earlier."""
        if self._metadata.version != self._seen_metadata:
            self._seen_metadata = self._metadata.version
            self._accumulator.update_leaders(self._metadata.cluster)
            self._results.losses.look_at(self._metadata.cluster, now)
        if self._accumulator.outdated and not self._accumulator.assign_leaders():
            self._wake.set()  # the next pass continues
        if self._producer_ids.rejection is not None:
            self._giving_up.fail_unnumbered(self._producer_ids.rejection)
            self._producer_ids.rejection = None
        if self._transaction.is_used and self._transaction.rejects_records:
            self._giving_up.abort_unsent(self._transaction.error)
        if self._accumulator.incomplete and not self._loop_watch.is_running:
            self._loop_watch.start()
        late = self._giving_up.expire_overdue(now)
        nodes, look_again = self._accumulator.ready(now)
        self._left_in_pass = sys.maxsize if self._transaction.is_used else ENOUGH_FOR_PASS
        times = [] if look_again is None else [look_again]
        if late:
            times = [now + UNREAD_ANSWER_GRACE]
        for served, node_id in enumerate(nodes):
            if self._left_in_pass <= 0:
                self._accumulator.serve_last(nodes[:served])  # the next pass begins with the other nodes
                self._wake.set()
                break
            if node_id == NO_NODE:
                self._ask_for_leaders(now)
            elif not self._idempotence.needs_identity:
                again_at = self._send_to(node_id, now)
                if again_at is not None:
                    times.append(again_at)
        if self._transaction.is_used:
            if self._transaction.has_to_join:
                self._coordinator.add_partitions()
            if (watch_again := self._coordinator.expiry.watch(now)) is not None:
                times.append(watch_again)
        elif self._idempotence.needs_identity and (nodes or not self._producer_ids.was_asked):
            # Ask for a producer id at the start, so that the first record need not wait for it, and again when the
            # last epoch is used up.
            self._producer_ids.ask()
        if self._brokers.update_wanted:
            self._brokers.update_wanted = False
            self._metadata.request_update()
        return min(times, default=None)

    def _ask_for_leaders(self, now: float) -> None:
        """Request new metadata if there are due batches for partitions without a known leader."""
        topics = self._accumulator.topics_without_leader()
        if not topics:
            return
        for topic in sorted(topics):
            self._metadata.touch(topic)
        self._metadata.request_update()
        if self._metadata.cluster.nodes:  # if no broker is known, that is logged elsewhere
            self._accumulator.log_missing_leaders(now)

    def _send_to(self, node_id: int, now: float) -> float | None:
        """Drain a node while it can accept requests. Return the loop time at which to try it again; None if nothing is
        left, or if the wake-up event will be set once the node can be tried again."""
        connection = self._brokers.ready(node_id)
        if (
            connection is not None
            and node_id not in self._begun
            and not self._transaction.role.is_only_writer
        ):
            # A broker verifies all partitions in one request together. While it is verifying them, it rejects requests
            # for other partitions with the same transactional id.
            self._begun.add(node_id)
            self._accumulator.hurry_node(node_id)
        availability = self._accumulator.availability
        if availability.is_watched:
            availability.update(node_id, now, can_drain=connection is not None)
        if connection is None:
            return self._brokers.retry_at(node_id, now)
        connection.cork()
        try:
            while self._left_in_pass > 0:
                batches, are_left = drain(
                    self._accumulator,
                    self._numbering.prepare,
                    node_id,
                    now,
                    most=sys.maxsize if self._transaction.is_used else MOST_IN_REQUEST,
                    most_bytes=self._config.max_request_size,
                )
                if batches:
                    self._produce(connection, node_id, batches, now)
                    self._left_in_pass -= len(batches) + REQUEST_COST
                if not are_left:
                    return None
                if not connection.can_send:
                    return self._brokers.retry_at(node_id, now)
        finally:
            connection.uncork()
        self._accumulator.serve_last([node_id])
        self._wake.set()
        return None

    # --------------------------------------------------------------------------------------------- a request

    def _produce(
        self, connection: Connection, node_id: int, batches: list[ProducerBatch], now: float
    ) -> None:
        """Number, seal and write one request with at most one batch for each partition."""
        topics: dict[str, tuple[str, int, list[ProducerBatch]]] = {}
        transaction = self._transaction
        number = self._numbering.number
        ceiling = None
        for batch in batches:
            queue = batch.queue
            topic = topics.get(queue.topic)
            if topic is None:
                info = self._metadata.cluster.topics.get(queue.topic)
                topic_id = 0 if info is None else info.topic_id.int
                if not topic_id:
                    ceiling = LAST_VERSION_WITH_TOPIC_NAMES
                topic = topics[queue.topic] = (queue.topic, topic_id, [])
                self._metadata.touch(queue.topic, now)
            topic[2].append(batch)
            number(batch)
            batch.mark_sent(node_id)
            queue.in_flight += (batch,)
            if transaction.is_used:
                transaction.writes_to(queue.topic, queue.partition)
        if transaction.is_used and not transaction.is_v2:
            ceiling = LAST_VERSION_OF_V1
        if len(topics) > 1:
            batches = [
                batch for _, _, part in topics.values() for batch in part
            ]  # in the order in which the request contains them
        self._count_request(batches, now)
        request = ProduceBatches(
            self._config.transactional_id,
            self._config.acks,
            self._request_timeout_ms,
            list(topics.values()),
        )
        answered = partial(self._answered, connection, batches, topics)
        try:
            connection.request(
                request,
                timeout=self._config.request_timeout,
                version_ceiling=ceiling,
                expects_response=self._config.acks != 0,
                answered=answered,
            )
        except UnsupportedVersionError as error:
            self._loop.call_soon(answered, None, error)

    def _count_request(self, batches: list[ProducerBatch], now: float) -> None:
        metrics = self._metrics
        metrics.produce_requests += 1
        records = 0
        for batch in batches:
            records += batch.record_count
            if batch.attempts == 1:
                metrics.batches += 1
                metrics.records_sent += batch.record_count
                metrics.record_bytes += batch.size
                metrics.batch_bytes += batch.wire_size
                metrics.batch_size.add(batch.wire_size)
                metrics.queue_time.add(now - batch.created)
                topic = metrics.topics.get(batch.queue.topic) or metrics.topic(batch.queue.topic)
                topic.batch_bytes += batch.wire_size
            else:
                topic = metrics.topic(batch.queue.topic)
                metrics.retries += 1
                topic.retries += 1
                metrics.records_retried += batch.record_count
                topic.records_retried += batch.record_count
        metrics.records_per_request.add(records)
        self._last_records = records

    def _answered(
        self,
        connection: Connection,
        batches: list[ProducerBatch],
        topics: dict[str, tuple[str, int, list[ProducerBatch]]],
        response: Any,
        error: KafkaError | None,
    ) -> None:
        """Apply the response to a request with these batches, or the error with which the request failed."""
        now = self._loop.time()
        for batch in batches:
            queue = batch.queue
            in_flight = queue.in_flight
            queue.in_flight = (
                () if len(in_flight) == 1 else tuple([other for other in in_flight if other is not batch])
            )
        if error is not None:
            addressed = self._addressed(connection, topics)
            for batch in batches:
                self._results.apply_failure(batch, error, now, addressed[batch.queue.topic])
        elif self._config.acks == 0:
            for batch in batches:
                self._results.complete(batch, now)
        elif isinstance(response, Appended):
            self._results.apply_success(batches, response, now)
        else:
            names = {topic_id: name for name, topic_id, _ in topics.values()}
            addressed = self._addressed(connection, topics)
            self._results.apply_response(connection.node.node_id, batches, names, addressed, response, now)
        node_id = connection.node.node_id
        stays_here = True
        for batch in batches:
            queue = batch.queue
            if queue.batches:
                self._accumulator.touch(queue)
            if queue.node_id != node_id:
                stays_here = False
        frees_only_a_place = stays_here and isinstance(response, Appended) and not self._transaction.is_used
        if not (frees_only_a_place and connection.reports_room):
            self._wake.set()

    def _addressed(
        self, connection: Connection, topics: dict[str, tuple[str, int, list[ProducerBatch]]]
    ) -> dict[str, int]:
        """Return, by topic name, how requests to this broker address each topic: by the topic's id, or NAMED."""
        known = connection.versions.ranges.get(ApiKey.PRODUCE)
        by_id = (
            known is not None
            and known.max > LAST_VERSION_WITH_TOPIC_NAMES
            and all(topic_id for _, topic_id, _ in topics.values())
            and not self._transaction.is_used
        )
        return {name: topic_id if by_id else NAMED for name, topic_id, _ in topics.values()}


def drain(
    accumulator: Accumulator,
    prepare: Callable[[PartitionQueue], bool],
    node_id: int,
    now: float,
    *,
    most: int,
    most_bytes: int,
) -> tuple[list[ProducerBatch], bool]:
    """Take at most one batch for each partition that is due for this node. Return the batches, and whether more may
    be left.

    Each call continues where the last one stopped, because a partition moves behind the others when its batch is taken.

    Args:
        accumulator: the accumulator that contains the batches.
        prepare: returns whether the first batch for a partition may be sent now (Numbering.prepare).
        node_id: the broker.
        now: the loop's time.
        most: the maximum number of batches.
        most_bytes: the maximum total size of the batches on the wire; a larger batch is taken alone.
    """
    drained: list[ProducerBatch] = []
    are_left = False
    size = 0
    for queue in accumulator.due(node_id, now):
        if len(drained) == most:
            return drained, True
        if not prepare(queue) or (batch := accumulator.close_first(queue)) is None:
            continue
        size += batch.wire_size
        if drained and size > most_bytes:
            return drained, True
        are_left |= accumulator.take(queue)
        drained.append(batch)
    return drained, are_left
