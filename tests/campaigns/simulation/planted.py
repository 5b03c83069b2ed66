"""Bugs planted in the producer, to check that the oracle finds them. Each is a patch for the duration of a `with`
block.

They are bugs that other clients had: numbers reused for other bytes, false acknowledgements, commits reported without
an answer, and unknown outcomes reported as known. `planted_connections.py` adds connection bugs. `unseen.py` lists
the bugs that random schedules do not find, with the reason and the test that finds each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from unittest import mock

from aioproducer.errors import (
    CommitOutcomeUnknownError,
    DeliveryTimeoutError,
    KafkaError,
    TransactionReinitError,
)
from aioproducer.network.brokers import Brokers
from aioproducer.producer import Producer
from aioproducer.protocol.messages import AddOffsetsToTxnRequest, TxnOffsetCommitRequest
from aioproducer.protocol.outcomes import Action, Condition, Moment, Row, decide_moment
from aioproducer.records._record_path import BatchState
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.idempotence import Idempotence
from aioproducer.sending import own_timeouts
from aioproducer.sending.giving_up import GivingUp
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.sending.sender import Sender, drain
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.requests import CoordinatorRequests
from aioproducer.transactions.state import Transaction, TransactionState, abortable
from aioproducer.types import Outcome
from tests.campaigns.simulation.plan import IDEMPOTENT, V1, V2, plan
from tests.campaigns.simulation.run import run
from tests.support.accumulator_bench import note_answered


@dataclass(frozen=True)
class PlantedBug:
    """A patch, the workload that reveals it, and how soon."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    kind: str
    seeds: int
    """At least one of this many seeds, counted from 1, reveals it."""
    rule: str
    """The oracle's rule that it breaks; it may break others, too."""
    among: tuple[str, ...] = ()
    """The kinds of faults in these runs; empty means all, as in other runs."""

    def convicted_by(self) -> tuple[int, str] | None:
        """Return the first seed that reveals it, and the violation."""
        with self.plant():
            for seed in range(1, self.seeds + 1):
                for sentence in run(plan(self.kind, seed, self.among)).broken:
                    if sentence.startswith(self.rule):
                        return seed, sentence
        return None


BUGS: list[PlantedBug] = []


def planted_bug(
    name: str, kind: str, seeds: int, rule: str, *among: str
) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Any]]:
    def register(plant: Callable[[], Iterator[None]]) -> Callable[[], Any]:
        planted = contextmanager(plant)
        BUGS.append(PlantedBug(name, planted, kind, seeds, rule, among))
        return planted

    return register


@planted_bug("a batch in doubt is sent again under new numbers", IDEMPOTENT, 60, "nothing_is_there_twice")
def renumbered() -> Iterator[None]:
    """The brokers' duplicate detection is not used: the second copy is a new batch to them."""

    def mark_returned(self: ProducerBatch) -> None:
        self.state = BatchState.CLOSED
        if self.identity is not None and self.queue.sequence is not None and not self.queue.in_flight:
            self.segments = ()
            self.first_sequence = -1
            self.identity = None
            self.maybe_persisted = False

    with mock.patch.object(ProducerBatch, "mark_returned", mark_returned):
        yield


@planted_bug(
    "numbers are used again for other bytes",
    IDEMPOTENT,
    60,
    "every_acknowledged_record_is_in_the_log",
    "answer held",
    "dropped after the append",
)
def reused() -> Iterator[None]:
    """The numbers of a failed batch go to the next one, without a new epoch (franz-go 1217)."""

    def note_given_up(self: Idempotence, sequence: Any, identity: Any) -> None:
        pass

    give_up = ProduceResults.give_up

    def giving_up(self: ProduceResults, batch: ProducerBatch, *arguments: Any, **more: Any) -> None:
        sequence = batch.queue.sequence
        if batch.is_numbered and sequence is not None and sequence.identity == batch.identity:
            sequence.next_sequence = batch.first_sequence
        give_up(self, batch, *arguments, **more)

    with (
        mock.patch.object(Idempotence, "note_given_up", note_given_up),
        mock.patch.object(ProduceResults, "give_up", giving_up),
    ):
        yield


@planted_bug("an acknowledgement is lost", IDEMPOTENT, 60, "every_call_and_delivery_ends_in_time")
def lost() -> Iterator[None]:
    """Every 7th acknowledged batch ends without a result for its deliveries."""
    succeed = ProducerBatch.succeed
    count = iter(range(1, 10**9))

    def succeeding(self: ProducerBatch, *answer: int) -> None:
        if next(count) % 7:
            succeed(self, *answer)
        else:
            self.state = BatchState.DONE

    with mock.patch.object(ProducerBatch, "succeed", succeeding):
        yield


@planted_bug("an acknowledgement is ignored", IDEMPOTENT, 60, "nothing_fails_for_no_reason")
def unheard() -> Iterator[None]:
    """Every 7th acknowledged batch is treated as unanswered until its time has run out."""
    complete = ProduceResults.complete
    count = iter(range(1, 10**9))

    def completing(self: ProduceResults, batch: ProducerBatch, *arguments: Any, **more: Any) -> None:
        if next(count) % 7:
            complete(self, batch, *arguments, **more)

    with mock.patch.object(ProduceResults, "complete", completing):
        yield


@planted_bug(
    "an unanswered commit is reported",
    V2,
    60,
    "transactions_are_visible_as_told",
    "dropped before the append",
    "broker crashes first",
)
def unanswered() -> Iterator[None]:
    """An EndTxn without an answer counts as a success."""
    end = Coordinator._end

    async def ending(self: Coordinator, *, commit: bool) -> None:
        try:
            await end(self, commit=commit)
        except Exception:
            if not commit:
                raise

    with mock.patch.object(Coordinator, "_end", ending):
        yield


@planted_bug(
    "a batch whose connection was cut after it was written is called not persisted",
    IDEMPOTENT,
    60,
    "nothing_not_persisted_is_there",
)
def cut() -> Iterator[None]:
    def claims(failure: Any, conditions: Any = ()) -> Row:
        return Row(Action.REFRESH, Outcome.NOT_PERSISTED)

    with (
        mock.patch("aioproducer.sending.produce_results.decide_failure", claims),
        mock.patch.object(GivingUp, "_expire", _expire_without_doubt),
    ):
        yield


def _expire_without_doubt(self: GivingUp, batch: ProducerBatch, now: float) -> None:
    if batch.state is not BatchState.IN_FLIGHT:
        self._accumulator.forget(batch)
    self._results.give_up(batch, "delivery timed out")


@planted_bug("a batch is dropped", IDEMPOTENT, 60, "every_acknowledged_record_is_in_the_log")
def dropped() -> Iterator[None]:
    """Every 5th batch is acknowledged without being sent."""
    count = iter(range(1, 10**9))

    def draining(accumulator: Accumulator, *arguments: Any, **more: Any) -> tuple[list[ProducerBatch], bool]:
        batches, are_left = drain(accumulator, *arguments, **more)
        for batch in list(batches):
            if not next(count) % 5 and batch.attempts == 0:
                batches.remove(batch)
                batch.succeed(0, -1, -1)
                accumulator.release(batch)
        return batches, are_left

    with mock.patch("aioproducer.sending.sender.drain", draining):
        yield


@planted_bug(
    "a retry goes behind its successors",
    IDEMPOTENT,
    100,
    "order_is_kept",
    "error instead",
    "leader moves first",
)
def reordered() -> Iterator[None]:
    """A batch that comes back is put at the end of its queue and gets new numbers."""

    def requeue(self: Accumulator, batch: ProducerBatch, retry_at: float) -> None:
        if not batch.maybe_persisted and not batch.queue.in_flight:
            batch.number(None, -1)
            if batch.queue.sequence is not None and batch.queue.sequence.identity is not None:
                batch.queue.sequence.has_gap = True
            batch.order = (next(self._orders), 0)
        original(self, batch, retry_at)

    original = Accumulator.requeue
    with mock.patch.object(Accumulator, "requeue", requeue):
        yield


@planted_bug(
    "the parts of a split batch have one place in the order",
    IDEMPOTENT,
    200,
    "order_is_kept",
    "max.message.bytes lowered",
    "error instead",
)
def parts_in_one_place() -> Iterator[None]:
    """The parts change places when several of them come back."""
    part = ProducerBatch.part

    def parted(self: ProducerBatch, *arguments: Any) -> ProducerBatch:
        found = part(self, *arguments)
        found.order = self.order
        return found

    with mock.patch.object(ProducerBatch, "part", parted):
        yield


@planted_bug(
    "several in flight before the first acknowledgement", IDEMPOTENT, 100, "order_is_kept", "error instead"
)
def too_early() -> Iterator[None]:
    """A broker that does not know a producer accepts any first number (KAFKA-15591)."""

    def may_be_in_flight(self: Idempotence, sequence: Any, leader: int, most: int) -> int:
        return most

    with mock.patch.object(Idempotence, "may_be_in_flight", may_be_in_flight):
        yield


@planted_bug(
    "a batch in flight is forgotten when it expires",
    IDEMPOTENT,
    60,
    "while it ran: a new epoch began too early",
    "answer held",
    "broker frozen",
)
def forgotten_in_flight() -> Iterator[None]:
    """The request of a batch is still in flight when the next batch of its partition begins a new epoch."""
    expire, answered = GivingUp._expire, Sender._answered

    def expiring(self: GivingUp, batch: ProducerBatch, now: float) -> None:
        expire(self, batch, now)
        if batch in batch.queue.in_flight:
            note_answered(batch)

    def answering(self: Sender, connection: Any, batches: list[ProducerBatch], *more: Any) -> None:
        for batch in batches:
            if batch not in batch.queue.in_flight:
                batch.queue.in_flight += (batch,)
        answered(self, connection, batches, *more)

    with mock.patch.object(GivingUp, "_expire", expiring), mock.patch.object(Sender, "_answered", answering):
        yield


@planted_bug(
    "a batch in doubt gets new numbers for a topic that was re-created",
    IDEMPOTENT,
    100,
    "nothing_is_there_twice",
    "topic recreated",
    "dropped after the append",
    "broker crashes after the append",
)
def renumbered_for_new_topic() -> Iterator[None]:
    """The first copy was sent by name, so it may already be in the log of the new topic. Since Kafka 4, requests
    contain topic ids."""

    def may_be_in(self: ProducerBatch, topic_id: int) -> bool:
        return False

    with mock.patch.object(ProducerBatch, "may_be_in", may_be_in):
        yield


@planted_bug("with v1 an export does not spend the epoch", V1, 60, "every_acknowledged_record_is_in_the_log")
def export_keeps_epoch() -> Iterator[None]:
    """The owner continues with numbers that a participant has used."""
    export = Coordinator.export

    async def exporting(self: Coordinator, partitions: Any) -> Any:
        handle = await export(self, partitions)
        self._transaction.epoch_is_spent = False
        return handle

    with mock.patch.object(Coordinator, "export", exporting):
        yield


@planted_bug("v2 begins in an epoch of v1", V2, 400, "transactions_are_visible_as_told")
def upgraded_in_mid_epoch() -> Iterator[None]:
    """The markers of the last v1 transaction also end the first v2 transaction."""
    with mock.patch.object(
        Transaction, "coordinator_hears", lambda self: setattr(self, "may_have_started", True)
    ):
        yield


@planted_bug("a release does not wait for what is in flight", V2, 60, "transactions_are_visible_as_told")
def hasty_release() -> Iterator[None]:
    """The heir commits a transaction without the records that fail afterwards."""
    settled = Coordinator._settled

    async def settling(self: Coordinator) -> None:
        if self._transaction.state is not TransactionState.RELEASING:
            await settled(self)

    with mock.patch.object(Coordinator, "_settled", settling):
        yield


@planted_bug("a failed record does not keep its transaction from being committed", V2, 60, "while it ran")
def committed_all_the_same() -> Iterator[None]:
    with mock.patch.object(Transaction, "require_abort", return_value=None):
        yield


@planted_bug("a transaction is aborted for no reason", V2, 60, "no_transaction_fails_for_no_reason")
def needless_abort() -> Iterator[None]:
    """Every 5th commit finds a reason to abort where there is none."""
    settled = Coordinator._settled
    count = iter(range(1, 10**9))

    async def settling(self: Coordinator) -> None:
        await settled(self)
        if not next(count) % 5:
            self._transaction.require_abort(abortable(self._transaction, KafkaError("planted")))

    with mock.patch.object(Coordinator, "_settled", settling):
        yield


@planted_bug("offsets go to the transaction's coordinator", V2, 60, "no_transaction_fails_for_no_reason")
def wrong_coordinator() -> Iterator[None]:
    """The transaction's coordinator rejects them, unless it is also the group's: with one broker the bug is hidden."""
    ask = CoordinatorRequests.ask

    async def asking(self: CoordinatorRequests, request: Any, code_of: Any, **options: Any) -> Any:
        return await ask(self, request, code_of, **options | {"group": None})

    with mock.patch.object(CoordinatorRequests, "ask", asking):
        yield


@planted_bug(
    "positions come a second time, with the next transaction",
    V1,
    60,
    "the_group_is_where_the_last_commit_left_it",
)
def repeated_positions() -> Iterator[None]:
    """This imitates a request that was delayed for a long time, whether its own transaction was committed or not."""
    send_offsets = Coordinator.send_offsets
    kept: list[tuple[Any, Any]] = []

    async def sending(self: Coordinator, offsets: Any, group: Any) -> None:
        while kept:
            await send_offsets(self, *kept.pop())
        await send_offsets(self, offsets, group)
        if self._transaction.number % 2:
            kept.append((offsets, group))

    with mock.patch.object(Coordinator, "send_offsets", sending):
        yield


@planted_bug(
    "with v1 an offsets request in doubt does not spend the epoch",
    V1,
    100,
    "the_group_is_where_the_last_commit_left_it",
    "offsets arrive in the next transaction",
)
def offsets_keep_epoch() -> Iterator[None]:
    """A late copy of TxnOffsetCommit meets the next transaction under the same epoch (as in Java)."""
    ask, doubt = CoordinatorRequests.ask, CoordinatorRequests._doubt
    asked: ContextVar[Any] = ContextVar("asked")

    async def asking(self: CoordinatorRequests, request: Any, *arguments: Any, **options: Any) -> Any:
        asked.set(request)
        return await ask(self, request, *arguments, **options)

    def doubting(self: CoordinatorRequests, conditions: Any) -> None:
        before = self._transaction.epoch_is_spent
        doubt(self, conditions)
        if isinstance(asked.get(), AddOffsetsToTxnRequest | TxnOffsetCommitRequest):
            self._transaction.epoch_is_spent = before

    with (
        mock.patch.object(CoordinatorRequests, "ask", asking),
        mock.patch.object(CoordinatorRequests, "_doubt", doubting),
    ):
        yield


@planted_bug(
    "with v1 the next epoch is asked for right after a commit",
    V1,
    100,
    "no_producer_aborts_its_successors_transaction",
    "successor before the answer to an end",
)
def no_abort_before_next_epoch() -> Iterator[None]:
    """A producer that was fenced in the meantime does not notice, and aborts its successor's transaction."""

    async def next_epoch(self: Coordinator) -> None:
        await self._new_epoch(self._identity)

    with mock.patch.object(Coordinator, "_next_epoch", next_epoch):
        yield


@planted_bug("in gapless order records behind a failed one are sent", IDEMPOTENT, 60, "no_gap_is_in_the_log")
def gap() -> Iterator[None]:
    """The setting has no effect."""
    with mock.patch.object(ProduceResults, "_end_behind"):
        yield


@planted_bug("with endless retries a record in doubt expires", IDEMPOTENT, 60, "nothing_in_doubt_is_given_up")
def expired_in_doubt() -> Iterator[None]:
    """The setting has no effect."""

    def deciding(moment: Moment, conditions: Any = ()) -> Row:
        return decide_moment(moment, {*conditions} - {Condition.ENDLESS})

    with mock.patch("aioproducer.sending.produce_results.decide_moment", deciding):
        yield


@planted_bug("an abort commits", V1, 60, "transactions_are_visible_as_told")
def aborted() -> Iterator[None]:
    end = Coordinator._end

    async def ending(self: Coordinator, *, commit: bool) -> None:
        await end(self, commit=True)

    with mock.patch.object(Coordinator, "_end", ending):
        yield


@planted_bug("close() forgets a connection", IDEMPOTENT, 60, "while it ran: close() left")
def left_open() -> Iterator[None]:
    async def close(self: Brokers) -> None:
        pass

    with mock.patch.object(Brokers, "close", close):
        yield


@planted_bug("memory is not given back", IDEMPOTENT, 60, "while it ran: close() left")
def leaked() -> Iterator[None]:
    give_up = ProducerBatch.give_up

    def giving_up(self: ProducerBatch, error: BaseException) -> None:
        self.take_reserved()
        give_up(self, error)

    with mock.patch.object(ProducerBatch, "give_up", giving_up):
        yield


@planted_bug("a delivery outlives its time-out", IDEMPOTENT, 60, "every_call_and_delivery_ends_in_time")
def immortal() -> Iterator[None]:
    expired = Accumulator.expired

    def later(self: Accumulator, now: float) -> list[ProducerBatch]:
        return expired(self, now - 0.5)

    with mock.patch.object(Accumulator, "expired", later):
        yield


@planted_bug(
    "a commit in doubt is called not committed",
    V2,
    100,
    "transactions_are_visible_as_told",
    "dropped after the append",
    "answer held",
)
def forgotten_commit() -> Iterator[None]:
    """A commit without an answer is reported with a known outcome."""

    commit = Producer.commit_transaction

    async def committing(self: Producer) -> None:
        try:
            await commit(self)
        except CommitOutcomeUnknownError as error:
            raise TransactionReinitError(str(error), transactional_id=error.transactional_id) from error

    with mock.patch.object(Producer, "commit_transaction", committing):
        yield


@planted_bug(
    "rows in flight that end by their timeout are called not persisted",
    IDEMPOTENT,
    60,
    "nothing_not_persisted_is",
)
def forgotten_rows() -> Iterator[None]:
    def error(*args: Any, **fields: Any) -> DeliveryTimeoutError:
        return DeliveryTimeoutError(*args, **{**fields, "outcome": Outcome.NOT_PERSISTED})

    with mock.patch.object(own_timeouts, "DeliveryTimeoutError", error):
        yield
