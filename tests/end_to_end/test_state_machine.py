"""Accumulator, sender and transaction together, compared with a short model. Hypothesis chooses the calls, the faults
and the virtual time that passes, and looks for the shortest sequence that reveals a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aioproducer import Outcome, Producer
from aioproducer.errors import (
    DeliveryError,
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    TransactionError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.simulation.loop import SimulatedLoop
from tests.campaigns.simulation.planted import BUGS

T = TypeVar("T")

TOPIC = "t"
PARTITIONS = 3
BUFFER = 32_768
partitions = st.integers(0, PARTITIONS - 1)

PASSING: dict[str, dict[str, Any]] = {
    "dropped before": {"drop_before": True},
    "dropped after the append": {"drop_after_append": True},
    "not the leader, after the append": {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER, "after_append": True},
    "not enough replicas": {"error": ErrorCode.NOT_ENOUGH_REPLICAS},
    "not enough replicas after the append": {
        "error": ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        "after_append": True,
    },
    "late": {"delay": 0.2},
    "half an answer": {"truncate": 7},
    "no word of the partition": {"omit_partitions": True},
}
"""Faults of a Produce request that do not cause any record to be lost."""

PASSING_AT_THE_END: dict[str, dict[str, Any]] = {
    "dropped before": {"drop_before": True},
    "dropped after it was done": {"drop_after_append": True},
    "loading": {"error": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    "not the coordinator": {"error": ErrorCode.NOT_COORDINATOR},
    "another one is still ending": {"error": ErrorCode.CONCURRENT_TRANSACTIONS},
}
"""Faults of an EndTxn request that don't change its outcome."""


class Model:
    """A producer's guarantees, in terms of record numbers, by partition and in the order of `send`."""

    def __init__(self, *, has_transactions: bool) -> None:
        self.has_transactions = has_transactions
        self.state = "ready" if has_transactions else "open"
        self.kept: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        """The records that read_committed consumers see."""
        self.pending: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        """Records of the open transaction; without transactions, records that are not flushed yet."""

    def end(self, *, keeps: bool) -> None:
        for partition, numbers in self.pending.items():
            if keeps:
                self.kept[partition] += numbers
            numbers.clear()
        self.state = "ready" if self.has_transactions else "open"


class ProducerMachine(RuleBasedStateMachine):
    """The producer and its cluster, on a loop of virtual time that runs only during a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimulatedLoop(1)
        self.problems: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.sent = 0
        self.deliveries: list[tuple[int, int, Any]] = []
        """Partition, number and delivery of each pending record."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize(
        kind=st.sampled_from(["plain", "v1", "v2"]),
        linger_ms=st.sampled_from([0, 20]),
        batch_size=st.sampled_from([1, 500, 16_384]),
    )
    def start(self, kind: str, linger_ms: int, batch_size: int) -> None:
        self.model = Model(has_transactions=kind != "plain")
        self.cluster = EmbeddedCluster(
            2,
            topics={TOPIC: PARTITIONS},
            transaction_version=1 if kind == "v1" else 2,
            clock=self.loop.wall_time,
            random=Random(1),
        )
        self.run(self.cluster.start())
        self.producer = Producer(
            self.cluster.bootstrap_servers,
            linger_ms=linger_ms,
            batch_size=batch_size,
            buffer_memory=BUFFER,
            max_request_size=BUFFER // 2,
            request_timeout_ms=1000,
            delivery_timeout_ms=30_000,
            retry_backoff_ms=20,
            retry_backoff_max_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            **({"transactional_id": "the-id"} if self.model.has_transactions else {}),
        )
        self.producer._random.seed(1)
        self.run(self.producer.start())

    # Records

    @rule(places=st.lists(partitions, min_size=1, max_size=12), size=st.sampled_from([10, 300, 9000]))
    def send(self, places: list[int], size: int) -> None:
        async def send_all() -> None:
            for partition in places:
                value = (b"%d " % self.sent).ljust(size, b".")
                delivery = await self.send_one(value, partition)
                self.model.pending[partition].append(self.sent)
                self.deliveries.append((partition, self.sent, delivery))
                self.sent += 1

        with self.refused_unless_open():
            self.run(send_all())

    async def send_one(self, value: bytes, partition: int) -> Any:
        timestamp_ms = int(self.loop.wall_time() * 1000)
        return await self.producer.send(TOPIC, value, partition=partition, timestamp_ms=timestamp_ms)

    def refused_unless_open(self) -> Any:
        """Expect an error unless a transaction is open."""
        return self.expected({"ready": IllegalStateError, "lost": TransactionError}.get(self.model.state))

    @staticmethod
    def expected(error: type[Exception] | None) -> Any:
        return pytest.raises(error) if error is not None else pytest.MonkeyPatch.context()

    @rule(partition=partitions)
    def send_what_is_too_large(self, partition: int) -> None:
        with pytest.raises((RecordTooLargeError, IllegalStateError, TransactionError)) as caught:
            self.run(self.producer.send(TOPIC, bytes(BUFFER), partition=partition))
        assert isinstance(caught.value, RecordTooLargeError) or self.model.state != "open"

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data())
    def cancel_a_delivery(self, data: st.DataObject) -> None:
        """Cancel a delivery; its record is still sent."""
        place = data.draw(st.integers(0, len(self.deliveries) - 1))
        self.deliveries[place][2].cancel()

    @rule()
    def flush(self) -> None:
        self.run(self.producer.flush())
        self.nothing_is_buffered()
        if not self.model.has_transactions:
            self.all_are_acknowledged()
            self.model.end(keeps=True)

    def nothing_is_buffered(self) -> None:
        accumulator = self.producer._accumulator
        assert accumulator.memory.available == accumulator.memory.total == BUFFER
        assert not accumulator.incomplete

    def all_are_acknowledged(self) -> None:
        """Check that each record is at the offset of its delivery."""
        for partition, number, delivery in self.deliveries:
            assert delivery.done()
            if not delivery.cancelled():
                offset = delivery.result().offset
                log = {record.offset: record for record in self.cluster.records(TOPIC, partition)}
                assert number_of(log[offset].value) == number
        self.deliveries.clear()

    @precondition(lambda self: self.model.state == "open")
    @rule(partition=partitions)
    def a_record_is_refused(self, partition: int) -> None:
        """Let the broker reject a record for which no retry helps: it is not in the log, and a transaction must be
        aborted."""
        self.flush()
        self.cluster.faults.clear()
        self.cluster.faults.add(
            ApiKey.PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic=TOPIC, partition=partition
        )

        async def send_one() -> None:
            await (await self.send_one(b"-1 refused", partition))

        with pytest.raises(DeliveryError) as caught:
            self.run(send_one())
        assert caught.value.outcome is Outcome.NOT_PERSISTED
        if self.model.has_transactions:
            self.model.state = "lost"

    # Transactions

    @precondition(lambda self: self.model.has_transactions)
    @rule()
    def begin(self) -> None:
        with self.expected({"open": IllegalStateError, "lost": TransactionError}.get(self.model.state)):
            self.run(self.producer.begin_transaction())
            self.model.state = "open"

    @precondition(lambda self: self.model.has_transactions)
    @rule()
    def commit(self) -> None:
        with self.expected({"ready": IllegalStateError, "lost": TransactionError}.get(self.model.state)):
            self.run(self.producer.commit_transaction())
            self.nothing_is_buffered()
            self.all_are_acknowledged()
            self.model.end(keeps=True)
            self.run(asyncio.sleep(1))  # until the markers are written

    @precondition(lambda self: self.model.has_transactions)
    @rule()
    def abort(self) -> None:
        with self.expected({"ready": IllegalStateError}.get(self.model.state)):
            self.run(self.producer.abort_transaction())
            self.run(asyncio.sleep(2))  # until the requests in flight are answered
            self.nothing_is_buffered()
            assert all(delivery.done() for _, _, delivery in self.deliveries)
            for _, _, delivery in self.deliveries:
                if not delivery.cancelled():
                    delivery.exception()
            self.deliveries.clear()
            self.model.end(keeps=False)

    # Faults

    @rule(name=st.sampled_from(sorted(PASSING)), partition=partitions, skip=st.integers(0, 2))
    def trouble_with_records(self, name: str, partition: int, skip: int) -> None:
        self.cluster.faults.add(ApiKey.PRODUCE, topic=TOPIC, partition=partition, skip=skip, **PASSING[name])

    @precondition(lambda self: self.model.has_transactions)
    @rule(name=st.sampled_from(sorted(PASSING_AT_THE_END)))
    def trouble_with_the_end(self, name: str) -> None:
        self.cluster.faults.add(ApiKey.END_TXN, **PASSING_AT_THE_END[name])

    @rule(partition=partitions)
    def a_leader_moves(self, partition: int) -> None:
        self.cluster.move_leader(TOPIC, partition, 1 - self.cluster.partition(TOPIC, partition).leader)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.03, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    # Invariants

    @invariant()
    def readers_see_what_was_promised(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for partition, kept in self.model.kept.items():
            found = [
                number_of(record.value) for record in self.cluster.records(TOPIC, partition, committed=True)
            ]
            # Without transactions, pending records may already be in the log, in order.
            ahead = [] if self.model.has_transactions else self.model.pending[partition]
            assert found == (kept + ahead)[: len(found)]
            assert len(found) >= len(kept)

    @invariant()
    def nothing_broke(self) -> None:
        assert not self.problems

    def teardown(self) -> None:
        try:
            if hasattr(self, "producer"):
                self.run(self.producer.close(timeout=60))
                self.nothing_is_buffered()
                assert all(delivery.done() for _, _, delivery in self.deliveries)
                if not self.model.has_transactions:
                    self.all_are_acknowledged()
                    self.model.end(keeps=True)
                for _, _, delivery in self.deliveries:
                    if not delivery.cancelled():
                        delivery.exception()
                self.run(asyncio.sleep(2))
                self.readers_see_what_was_promised()
                assert self.loop.network.open_clients == []
                self.run(self.cluster.stop())
                assert asyncio.all_tasks(self.loop) == set()
            self.nothing_broke()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.run(asyncio.sleep(0))
            self.loop.close()


def number_of(value: bytes | None) -> int:
    assert value is not None
    return int(value.partition(b" ")[0])


# The same examples in each run, so that only a change can make a run fail.
SETTINGS = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestProducerMachine = ProducerMachine.TestCase
TestProducerMachine.settings = SETTINGS

CONVICTED = (
    "a batch in doubt is sent again under new numbers",
    "a failed record does not keep its transaction from being committed",
    "an abort commits",
    "close() forgets a connection",
    "memory is not given back",
)


@pytest.mark.promise(
    "Simulation and fuzzing", "accumulator, sender and transaction do what a model of a few lines says"
)
@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in CONVICTED], ids=lambda bug: bug.name)
def test_the_machine_finds_a_planted_bug(bug):
    with bug.plant(), pytest.raises((AssertionError, KafkaError, pytest.fail.Exception)):
        run_state_machine_as_test(ProducerMachine, settings=settings(SETTINGS, phases=[Phase.generate]))


@pytest.mark.promise(
    "Simulation and fuzzing", "accumulator, sender and transaction do what a model of a few lines says"
)
def test_all_bugs_that_it_should_find_are_planted():
    assert {bug.name for bug in BUGS} >= set(CONVICTED)
