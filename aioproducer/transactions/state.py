"""Where a producer's transaction stands: decides, sends nothing and waits for nothing.

The user's calls, the coordinator and the sender move it, all on one event loop; what is due next is read from here."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from enum import Enum
from typing import Protocol

from aioproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    TransactionAbortableError,
    TransactionError,
    TransactionReinitError,
)
from aioproducer.types import OffsetAndMetadata, TopicPartition, TransactionHandle


class TransactionState(Enum):
    """Where a producer's transactions stand."""

    NONE = "no transactions"
    """The producer has no transactional id."""
    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    RELEASING = "giving its transaction away"
    ABORT_REQUIRED = "in a transaction that must be aborted"
    ABORTING = "aborting"
    OUTCOME_UNKNOWN = "not knowing whether the last transaction was committed"
    REINIT_REQUIRED = "in need of init_transactions()"
    PARTICIPANT = "taking part in another producer's transaction"
    FAILED_PARTICIPANT = "a part of a transaction that its owner must abort"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python function


_S = TransactionState

TRANSITIONS: dict[TransactionState, tuple[TransactionState, ...]] = {
    _S.NONE: (),
    _S.UNINITIALIZED: (_S.INITIALIZING, _S.PARTICIPANT, _S.IN_TRANSACTION),
    _S.INITIALIZING: (_S.READY, _S.UNINITIALIZED, _S.REINIT_REQUIRED),
    _S.READY: (_S.IN_TRANSACTION, _S.INITIALIZING),
    _S.IN_TRANSACTION: (
        _S.COMMITTING,
        _S.ABORTING,
        _S.ABORT_REQUIRED,
        _S.REINIT_REQUIRED,
        _S.RELEASING,
    ),
    _S.COMMITTING: (
        _S.READY,
        _S.INITIALIZING,
        _S.ABORT_REQUIRED,
        _S.OUTCOME_UNKNOWN,
        _S.REINIT_REQUIRED,
        _S.UNINITIALIZED,
    ),
    _S.RELEASING: (
        _S.UNINITIALIZED,
        _S.IN_TRANSACTION,
        _S.ABORTING,
        _S.ABORT_REQUIRED,
        _S.REINIT_REQUIRED,
    ),
    _S.ABORT_REQUIRED: (_S.ABORTING, _S.REINIT_REQUIRED),
    _S.ABORTING: (_S.READY, _S.INITIALIZING, _S.REINIT_REQUIRED, _S.UNINITIALIZED),
    _S.OUTCOME_UNKNOWN: (_S.COMMITTING, _S.INITIALIZING),
    _S.REINIT_REQUIRED: (_S.INITIALIZING,),
    _S.PARTICIPANT: (_S.FAILED_PARTICIPANT,),
    _S.FAILED_PARTICIPANT: (),
}

_OPEN = frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.RELEASING})
_LOST = frozenset(
    {_S.ABORT_REQUIRED, _S.ABORTING, _S.OUTCOME_UNKNOWN, _S.REINIT_REQUIRED, _S.FAILED_PARTICIPANT}
)

WAYS_OUT = {
    _S.UNINITIALIZED: "start() has not finished, or a transaction was given away and init_transactions() comes first",
    _S.INITIALIZING: "wait for init_transactions()",
    _S.READY: "begin one with begin_transaction() or `async with producer.transaction()`",
    _S.IN_TRANSACTION: "commit or abort it first",
    _S.COMMITTING: "wait for commit_transaction()",
    _S.RELEASING: "wait for release_transaction()",
    _S.ABORT_REQUIRED: "call abort_transaction()",
    _S.ABORTING: "wait for abort_transaction(), or call it again",
    _S.OUTCOME_UNKNOWN: "call commit_transaction() again to ask for the answer, or find out from what was to be "
    "committed, then call init_transactions()",
    _S.REINIT_REQUIRED: "call init_transactions() to take the transactional id over, or close the producer",
    _S.PARTICIPANT: "only the producer that began the transaction can end it",
    _S.FAILED_PARTICIPANT: "tell the producer that began the transaction to abort it, and close this one",
}


class Gate(Protocol):
    """What the record's path looks at before each append."""

    is_open: bool


class Transaction:
    """The current transaction of a producer, or that it has none."""

    def __init__(self, transactional_id: str | None, gate: Gate) -> None:
        self.transactional_id = transactional_id or ""
        self.state = _S.UNINITIALIZED if transactional_id else _S.NONE
        self.is_used = self.state is not _S.NONE
        """The producer has a transactional id."""
        self._gate = gate
        gate.is_open = not self.is_used
        self.error: TransactionError | None = None
        """Why the transaction can't be committed, or why a new epoch is needed."""
        self.number = 0
        """Of the transaction that began last; 0 before the first."""
        # of that transaction
        self.is_v2 = False
        """Transactions v2 (KIP-890): partitions join by being written to, and each end brings a new epoch."""
        self.may_have_started = False
        """The coordinator may know of it, so it has to be ended there."""
        self.began: float | None = None
        """When the coordinator first may have known of it, by loop.time(): from then on its time-out counts there."""
        self.has_expired = False
        """It came too near to its time-out, and is aborted without being asked to."""
        self.epoch_is_spent = False
        """A numbered batch was given up, a request was not answered, or others number batches too: with v1, whose epoch
        goes on, the next transaction needs another one."""
        self.commit_is_in_doubt = False
        """Its commit was sent and not answered, so it may only be repeated as it was."""
        self.partitions: dict[TopicPartition, None] = {}
        """Those that belong to it."""
        self.written: dict[TopicPartition, None] = {}
        """Those of them that this producer has written to itself."""
        self.numbered: dict[TopicPartition, None] = {}
        """Partitions that this producer wrote to in earlier transactions of its current epoch. The broker remembers
        these numbers until the epoch changes."""
        self.changes_epoch = False
        """A new epoch is being taken before anything of the transaction is sent, so nothing may be sent meanwhile."""
        self.exported: dict[TopicPartition, None] = {}
        """Those that others write to."""
        self.wanted: dict[TopicPartition, None] = {}
        """With v1: those that have to join before they are written to."""
        self.groups: dict[str, None] = {}
        """With v1: consumer groups whose offsets belong to it."""
        self.doubtful_offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        """By group: offsets in requests of which an attempt was not answered, so that a copy may arrive late."""
        self.is_resumed = False
        """Another producer began it and released it: this one may end it, and not write to it."""
        self._refusals: dict[str, list[KafkaError | None]] = {}
        """Of a participant, by topic: what is said of each partition; its own ones stay the same."""
        self.tells_repetitions = False
        """Of a participant whose topics have CreateTime: a success with a time is that of a batch in the log before."""

    @property
    def refuses_records(self) -> bool:
        """Records that were not sent yet never will be."""
        return self.state in _LOST

    def move(self, to: TransactionState) -> None:
        """Every change of state goes through here; the table above is the whole truth."""
        assert to in TRANSITIONS[self.state], f"a transaction can't go from {self.state.value} to {to.value}"
        self.state = to
        self._gate.is_open = to is _S.PARTICIPANT or (to is _S.IN_TRANSACTION and not self.is_resumed)

    # What the user's calls ask

    def check_may_send(self) -> None:
        """Raise unless a record may be sent now.

        Raises:
            IllegalStateError: there is no transaction.
            TransactionError: it has failed.
        """
        if self._gate.is_open:
            return
        if self.refuses_records and self.error is not None:
            raise copy(self.error)
        if self.is_resumed and self.state is _S.IN_TRANSACTION:
            raise IllegalStateError(
                f"send: the producer {self.transactional_id!r} has resumed a transaction, and can only end it: only "
                "the producers that wrote to it know the next sequence numbers; commit or abort it"
            )
        raise self._wrong_state("send")

    def check_is_still(self, number: int) -> None:
        """Raise unless the transaction is the one that had this number, and a record may be sent now.

        Raises:
            IllegalStateError: another one has begun while a call of `send` waited: the record belongs to the old one.
            TransactionError: it has failed.
        """
        self.check_may_send()
        if number != self.number:
            raise IllegalStateError(
                "the transaction in which send was called has ended meanwhile; nothing was buffered"
            )

    def check(self, call: str, *allowed: TransactionState) -> None:
        """Raise unless the state is one of `allowed`.

        Raises:
            IllegalStateError: the call does not fit.
            TransactionError: the transaction has failed, and the call is not what has to follow.
        """
        if self.state is _S.NONE:
            raise IllegalStateError(f"{call} needs a producer with a transactional_id")
        if self.state in allowed:
            return
        if self.refuses_records and self.error is not None:
            raise copy(self.error)
        raise self._wrong_state(call)

    def _wrong_state(self, call: str) -> IllegalStateError:
        return IllegalStateError(
            f"{call} does not fit: the producer {self.transactional_id!r} is {self.state.value}; "
            f"{WAYS_OUT[self.state]}"
        )

    def begin(self, *, is_v2: bool) -> None:
        """A new transaction; by which protocol is settled for all of it."""
        self.is_resumed = False
        self.move(_S.IN_TRANSACTION)
        self.number += 1
        self.is_v2 = is_v2
        self.error = None
        self.may_have_started = self.epoch_is_spent = self.commit_is_in_doubt = self.has_expired = False
        self.began = None
        self.partitions.clear()
        self.numbered.update(self.written)
        self.written.clear()
        self.exported.clear()
        self.wanted.clear()
        self.groups.clear()
        self.doubtful_offsets.clear()

    def epoch_changed(self) -> None:
        """The next batch of each partition begins with sequence 0 of a new epoch."""
        self.epoch_is_spent = False
        self.written.clear()
        self.numbered.clear()

    @property
    def needs_epoch(self) -> bool:
        """The sequences of this epoch can't go on, and ending the transaction does not end the epoch."""
        return self.epoch_is_spent and not (self.is_v2 and self.may_have_started)

    def resume(self, handle: TransactionHandle) -> None:
        """Own a transaction that another producer has begun and released. The epoch is its, and ends with it."""
        self.is_resumed = True
        self.move(_S.IN_TRANSACTION)
        self.number += 1
        self.is_v2 = handle.is_v2
        self.may_have_started = handle.has_begun
        self.epoch_is_spent = True

    def attach(
        self, handle: TransactionHandle, partitions: Iterable[TopicPartition], *, tells_repetitions: bool
    ) -> None:
        """Take part in a transaction that another producer has begun; only these partitions are ours."""
        self.move(_S.PARTICIPANT)
        self.tells_repetitions = tells_repetitions
        self.is_v2 = handle.is_v2
        self.joined(partitions)

    def check_is_own(self, topic: str, partition: int) -> None:
        """Raise if a participant writes to a partition that may be another one's.

        The broker can't tell participants apart: two that number the records of one partition overwrite each other,
        and are told "success".

        Raises:
            InvalidRecordError: the partition was not given to `attach`.
        """
        if self.state is _S.PARTICIPANT and TopicPartition(topic, partition) not in self.partitions:
            raise InvalidRecordError(
                f"partition {partition} of topic {topic} was not given to Producer.attach(partitions=...); another "
                "participant of the transaction may write to it",
                argument="partition",
            )

    def refusals(self, topic: str, count: int) -> list[KafkaError | None] | None:
        """What `check_is_own` says of each partition, of `count` at least; None if nothing is refused to anybody."""
        if self.state is not _S.PARTICIPANT:
            return None
        found = self._refusals.setdefault(topic, [])
        for partition in range(len(found), count):
            try:
                self.check_is_own(topic, partition)
                found.append(None)
            except InvalidRecordError as error:
                found.append(error.with_traceback(None))
        return found

    # What the sender asks

    def may_drain(self, topic: str, partition: int) -> bool:
        """Whether records of this partition may be written now; if it has to join first, that is noted."""
        if self.state is _S.NONE:
            return True
        if self.state is _S.PARTICIPANT:
            return TopicPartition(topic, partition) in self.partitions
        if self.state not in _OPEN or self.changes_epoch:
            return False
        if self.is_v2:
            return True
        place = TopicPartition(topic, partition)
        if place in self.partitions:
            return True
        self.wanted[place] = None
        return False

    def is_anothers(self, topic: str, partition: int) -> bool:
        """The partition was exported: what this producer numbers there would be lost, with success for everybody."""
        return bool(self.exported) and TopicPartition(topic, partition) in self.exported

    @property
    def has_to_join(self) -> bool:
        """Partitions are wanted, and the transaction can still take them in."""
        return bool(self.wanted) and self.state in _OPEN

    def writes_to(self, topic: str, partition: int) -> None:
        """Records of this partition are about to be written; with v2 that makes it join."""
        place = TopicPartition(topic, partition)
        self.written[place] = None
        if self.is_v2:
            self.may_have_started = True
            self.partitions[place] = None

    def joined(self, places: Iterable[TopicPartition]) -> None:
        """The coordinator has taken them into the transaction."""
        for place in places:
            self.wanted.pop(place, None)
            self.partitions[place] = None

    def must_abort(self, error: TransactionError) -> None:
        """It can't be committed any more. The first cause is kept."""
        if self.state in _OPEN:
            self.error = error
            self.move(_S.ABORT_REQUIRED)
        elif self.state is _S.PARTICIPANT:
            self.error = error
            self.move(_S.FAILED_PARTICIPANT)

    def misses_record(self, number: int, cause: BaseException) -> None:
        """A record of transaction `number` was rejected without an exception, so the transaction can no longer be
        committed, not even by a producer that takes it over. Nothing changes if that transaction has ended or is about
        to, or if this producer only participates."""
        if number == self.number and self.state in (_S.IN_TRANSACTION, _S.RELEASING):
            self.must_abort(abortable(self, cause))

    def must_reinit(self, error: TransactionError) -> None:
        """Nothing more can be done under this epoch."""
        if self.state in (_S.REINIT_REQUIRED, _S.OUTCOME_UNKNOWN, _S.FAILED_PARTICIPANT):
            return
        self.error = error
        if self.state is _S.PARTICIPANT:
            self.move(_S.FAILED_PARTICIPANT)
            return
        is_in_doubt = isinstance(error, CommitOutcomeUnknownError)
        self.commit_is_in_doubt |= is_in_doubt
        self.move(_S.OUTCOME_UNKNOWN if is_in_doubt else _S.REINIT_REQUIRED)


def abortable(transaction: Transaction, cause: BaseException) -> TransactionAbortableError:
    """The error of a transaction that a failed record, or a refused request, makes impossible to commit."""
    return TransactionAbortableError(
        f"the transaction of {transaction.transactional_id!r} can only be aborted: {cause}",
        transactional_id=transaction.transactional_id,
        last_error=cause,
    )


def reinit(
    transaction: Transaction, kind: type[TransactionReinitError], reason: str
) -> TransactionReinitError:
    """The error of a producer that needs a new epoch."""
    state = _S.OUTCOME_UNKNOWN if issubclass(kind, CommitOutcomeUnknownError) else _S.REINIT_REQUIRED
    return kind(
        f"{transaction.transactional_id!r}: {reason}; {WAYS_OUT[state]}",
        transactional_id=transaction.transactional_id,
    )
