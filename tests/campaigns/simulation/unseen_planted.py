"""The bugs of `unseen.py`, each as a patch for the duration of a `with` block, and a pytest plugin that plants one.

    AIOPRODUCER_TEST_BUG="the epoch of a leader goes backwards" python -m pytest \\
        -p tests.campaigns.simulation.unseen_planted tests/test_cluster.py

`test_unseen.py` runs the test that `unseen.py` names for each bug, which must fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest import mock

import pytest

from aioproducer import cluster
from aioproducer.protocol import outcomes
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import AddPartitionsToTxnRequest, EndTxnRequest
from aioproducer.protocol.outcomes import Condition, Row
from aioproducer.records import idempotence
from aioproducer.records._record_path import BatchState
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.idempotence import Idempotence
from aioproducer.sending.numbering import Numbering
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.requests import CoordinatorRequests
from aioproducer.types import Outcome

VARIABLE = "AIOPRODUCER_TEST_BUG"
"""The environment variable with the name of the bug."""

PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {}
"""The patch for each bug, by the name that it has in UNSEEN."""


def pytest_configure(config: pytest.Config) -> None:
    """Plant the bug before any test module is imported."""
    stack = ExitStack()
    stack.enter_context(PLANTS[os.environ[VARIABLE]]())
    config.add_cleanup(stack.close)


def _bug(name: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], AbstractContextManager[None]]]:
    def register(plant: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
        PLANTS[name] = planted = contextmanager(plant)
        return planted

    return register


@_bug("a batch gets new numbers in the same epoch when it is sent again")
def renumbered() -> Iterator[None]:
    """The first numbers are never used, which leaves a gap."""
    original = ProducerBatch.mark_returned

    def mark_returned(self: ProducerBatch) -> None:
        original(self)
        if not self.maybe_persisted:
            self.number(None, -1)

    with mock.patch.object(ProducerBatch, "mark_returned", mark_returned):
        yield


@_bug("a batch that is sent again is unmuted while others are in flight")
def unmuted() -> Iterator[None]:
    original = Numbering.prepare

    def prepare(self: Numbering, queue: Any) -> bool:
        first = queue.batches[0]
        if queue.in_flight and first.is_numbered and queue.sequence is not None:
            most = self._idempotence.may_be_in_flight(queue.sequence, queue.node_id, self._most_in_flight)
            return len(queue.in_flight) < most
        return original(self, queue)

    with mock.patch.object(Numbering, "prepare", prepare):
        yield


@_bug("the epoch of a leader goes backwards")
def older_leader() -> Iterator[None]:
    """Old metadata replaces newer metadata."""
    original = cluster._merged_partition

    def merged(topic: str, topic_id: Any, answer: Any, before: Any, nodes: Any) -> cluster.PartitionInfo:
        return original(topic, topic_id, answer, (), nodes)

    with mock.patch("aioproducer.cluster._merged_partition", merged):
        yield


@_bug("the second part of a split batch is numbered one too far")
def one_too_far() -> Iterator[None]:
    def sequence_after(sequence: int, count: int) -> int:
        return idempotence.sequence_after(sequence, count + 1)

    with mock.patch("aioproducer.sending.produce_results.sequence_after", sequence_after):
        yield


@_bug("five batches are in flight to a new leader")
def too_many_to_new_leader() -> Iterator[None]:
    """An acknowledgement of the former leader counts for the new one."""
    original = Idempotence.may_be_in_flight

    def may_be_in_flight(self: Idempotence, sequence: Any, leader: int, most: int) -> int:
        former = leader if sequence.confirmed_on is None else sequence.confirmed_on[1]
        return original(self, sequence, former, most)

    with mock.patch.object(Idempotence, "may_be_in_flight", may_be_in_flight):
        yield


@_bug("a batch counts as the first although an earlier one waits for its next attempt")
def overlooked() -> Iterator[None]:
    """Only the batches in flight are looked at."""
    original = ProduceResults._conditions

    def conditions(self: ProduceResults, batch: ProducerBatch, answer: Any) -> set[Condition]:
        found = original(self, batch, answer)
        if not any(other.is_numbered and other.order < batch.order for other in batch.queue.in_flight):
            found.discard(Condition.NOT_FIRST)
        return found

    with mock.patch.object(ProduceResults, "_conditions", conditions):
        yield


@_bug("with v1 a transaction counts as begun only after the answer to AddPartitionsToTxn")
def begun_too_late() -> Iterator[None]:
    add, ask, has_begun = Coordinator._add_partitions, Coordinator._ask, Coordinator._has_begun
    is_adding = ContextVar("is_adding", default=False)

    async def adding(self: Coordinator) -> None:
        before = is_adding.set(True)
        try:
            await add(self)
        finally:
            is_adding.reset(before)

    def beginning(self: Coordinator) -> None:
        if not is_adding.get():
            has_begun(self)

    async def asking(self: Coordinator, request: Any, *arguments: Any, **options: Any) -> Any:
        answer = await ask(self, request, *arguments, **options)
        if isinstance(request, AddPartitionsToTxnRequest):
            has_begun(self)
        return answer

    with (
        mock.patch.object(Coordinator, "_add_partitions", adding),
        mock.patch.object(Coordinator, "_has_begun", beginning),
        mock.patch.object(Coordinator, "_ask", asking),
    ):
        yield


@_bug("with v1 an end without an answer keeps its epoch")
def end_keeps_epoch() -> Iterator[None]:
    """A late copy of EndTxn meets the next transaction under the same epoch (KAFKA-17754)."""
    ask, doubt = CoordinatorRequests.ask, CoordinatorRequests._doubt
    asked: ContextVar[Any] = ContextVar("asked")

    async def asking(self: CoordinatorRequests, request: Any, *arguments: Any, **options: Any) -> Any:
        asked.set(request)
        return await ask(self, request, *arguments, **options)

    def doubting(self: CoordinatorRequests, conditions: set[Condition]) -> None:
        before = self._transaction.epoch_is_spent
        doubt(self, conditions)
        if isinstance(asked.get(), EndTxnRequest):
            self._transaction.epoch_is_spent = before

    with (
        mock.patch.object(CoordinatorRequests, "ask", asking),
        mock.patch.object(CoordinatorRequests, "_doubt", doubting),
    ):
        yield


@_bug("the numbers for a re-created topic begin at 0 in the same epoch")
def same_epoch_for_new_topic() -> Iterator[None]:
    original = Numbering._sequence_of

    def sequence_of(self: Numbering, queue: Any) -> Any:
        with mock.patch.object(Idempotence, "bump"):
            return original(self, queue)

    with mock.patch.object(Numbering, "_sequence_of", sequence_of):
        yield


@_bug("an acknowledgement of an old epoch closes the gap of a new one")
def closed_by_old_epoch() -> Iterator[None]:
    original = Idempotence.note_acknowledged

    def note_acknowledged(self: Idempotence, sequence: Any, identity: Any, leader: int) -> None:
        original(self, sequence, identity, leader)
        sequence.has_gap = False

    with mock.patch.object(Idempotence, "note_acknowledged", note_acknowledged):
        yield


@_bug("a batch is dropped where a request is full")
def dropped_where_full() -> Iterator[None]:
    """It is taken from its queue before its size is compared."""

    def drain(
        accumulator: Accumulator,
        prepare: Callable[[Any], bool],
        node_id: int,
        now: float,
        *,
        most: int,
        most_bytes: int,
    ) -> tuple[list[ProducerBatch], bool]:
        drained: list[ProducerBatch] = []
        are_left = False
        size = 0
        for queue in accumulator.due(node_id, now):
            if len(drained) == most:
                return drained, True
            if not prepare(queue) or (batch := accumulator.close_first(queue)) is None:
                continue
            size += batch.wire_size
            are_left |= accumulator.take(queue)
            if drained and size > most_bytes:
                return drained, True
            drained.append(batch)
        return drained, are_left

    with mock.patch("aioproducer.sending.sender.drain", drain):
        yield


@_bug("in gapless order a batch ends with its first records although others have joined it")
def ended_with_first_records() -> Iterator[None]:
    """A batch that once had no live records is not looked at again."""
    original = Accumulator.expired

    def expired(self: Accumulator, now: float) -> list[ProducerBatch]:
        found = [batch for batch in self._abandoned if batch.state is not BatchState.IN_FLIGHT]
        return found + [batch for batch in original(self, now) if batch not in found]

    with mock.patch.object(Accumulator, "expired", expired):
        yield


@_bug("REQUEST_TIMED_OUT or NOT_COORDINATOR for EndTxn counts as nothing done")
def nothing_done() -> Iterator[None]:
    def decide(api: ApiKey, code: int, conditions: Any = ()) -> Row:
        row = outcomes.decide(api, code, conditions)
        if api is ApiKey.END_TXN and code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR):
            return row._replace(outcome=Outcome.NOT_PERSISTED)
        return row

    with mock.patch("aioproducer.transactions.requests.decide", decide):
        yield
