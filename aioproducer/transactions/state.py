"""The state of a producer's transaction. This module makes decisions; it neither sends nor waits.

The user's calls, the coordinator and the sender change the state and use it to decide what to do next. All three run
on one event loop."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from enum import Enum

from aioproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    TransactionAbortableError,
    TransactionError,
    TransactionReinitError,
)
from aioproducer.records._record_path import Gate
from aioproducer.transactions.roles import HEIR, OWNER, Participant, Role
from aioproducer.types import OffsetAndMetadata, TopicPartition, TransactionHandle


class TransactionState(Enum):
    """The state of a producer's transactions. Error messages contain the values: "the producer 'x' is <value>"."""

    NONE = "no transactions"
    """The producer has no transactional id."""
    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    RELEASING = "releasing its transaction"
    ABORT_REQUIRED = "in a transaction that must be aborted"
    ABORTING = "aborting"
    OUTCOME_UNKNOWN = "uncertain whether the last transaction was committed"
    REINIT_REQUIRED = "unusable until init_transactions() is called"
    PARTICIPANT = "taking part in another producer's transaction"
    FAILED_PARTICIPANT = "taking part in a transaction that its owner must abort"

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
    _S.UNINITIALIZED: "wait for start(), or call init_transactions() if the last transaction was released or resumed",
    _S.INITIALIZING: "wait for init_transactions()",
    _S.READY: "begin a transaction with begin_transaction() or `async with producer.transaction()`",
    _S.IN_TRANSACTION: "commit or abort it first",
    _S.COMMITTING: "wait for commit_transaction()",
    _S.RELEASING: "wait for release_transaction()",
    _S.ABORT_REQUIRED: "call abort_transaction()",
    _S.ABORTING: "wait for abort_transaction(), or call it again",
    _S.OUTCOME_UNKNOWN: "call commit_transaction() again to repeat the request, or find out yourself whether the "
    "records were committed, and then call init_transactions()",
    _S.REINIT_REQUIRED: "call init_transactions() to take over the transactional id, or close the producer",
    _S.PARTICIPANT: "only the producer that began the transaction can end it",
    _S.FAILED_PARTICIPANT: "abort the transaction with the producer that began it, and close this one",
}

_STUCK = frozenset({_S.OUTCOME_UNKNOWN, _S.REINIT_REQUIRED, _S.FAILED_PARTICIPANT})
"""The states in which no transaction can begin, not even after an abort."""


class Transaction:
    """The current transaction of a producer, if there is one."""

    def __init__(self, transactional_id: str | None, gate: Gate) -> None:
        self.transactional_id = transactional_id or ""
        self.state = _S.UNINITIALIZED if transactional_id else _S.NONE
        self.is_used = self.state is not _S.NONE
        """True if the producer has a transactional id."""
        self._gate = gate
        gate.is_open = not self.is_used
        self.error: TransactionError | None = None
        """The reason why the transaction can't be committed, or why a new epoch is needed."""
        self.number = 0
        """The number of the transaction that began last; 0 before the first one."""
        # The following fields describe the transaction with this number.
        self.is_v2 = False
        """True for transactions v2 (KIP-890): writing to a partition adds it to the transaction, and the response
        to each EndTxn contains a new epoch."""
        self.may_have_started = False
        """True if the coordinator may know of the transaction, which must then be ended there."""
        self.began: float | None = None
        """The earliest loop time at which the coordinator may have learned of the transaction. The time-out starts
        then."""
        self.has_expired = False
        """True if the transaction came too close to its time-out, so that the producer aborts it of its own accord."""
        self.epoch_is_spent = False
        """True if the sequence numbers of this epoch cannot be continued: a numbered batch failed, a request was not
        answered, or other producers also number batches. With v1, the epoch outlives the transaction, so the next
        transaction needs another epoch."""
        self.commit_is_in_doubt = False
        """True if the commit was sent but not answered. In that case, the commit may be repeated, but no abort
        may be sent."""
        self.partitions: dict[TopicPartition, None] = {}
        """Partitions that belong to the transaction."""
        self.written: dict[TopicPartition, None] = {}
        """Partitions of the transaction that this producer has written to."""
        self.numbered: dict[TopicPartition, None] = {}
        """Partitions that this producer wrote to in earlier transactions of its current epoch. The broker remembers
        their sequence numbers until the epoch changes."""
        self.epoch_began_v1 = False
        """True if the coordinator may know of a v1 transaction in the current epoch. Its markers may not have been
        written yet when the next transaction begins. If the next transaction used v2 in the same epoch, brokers would
        accept its batches before the markers, which would then end it too. Therefore, v2 is used only from the next
        epoch on (as in Java's TransactionManager)."""
        self.changes_epoch = False
        """True while the transaction takes a new epoch at its start; nothing may be sent until the epoch arrives."""
        self.exported: dict[TopicPartition, None] = {}
        """Partitions that other producers write to."""
        self.wanted: dict[TopicPartition, None] = {}
        """Partitions that have to join the transaction before they are written to (v1 only)."""
        self.groups: dict[str, None] = {}
        """Consumer groups whose offsets belong to the transaction (v1 only)."""
        self.doubtful_offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        """For each group, the offsets that were sent in unanswered attempts, which may be carried out late."""
        self.role: Role = OWNER

    @property
    def rejects_records(self) -> bool:
        """True if records that have not been sent yet will never be sent."""
        return self.state in _LOST

    @property
    def is_uncommitted(self) -> bool:
        """True if the transaction is open or being aborted, and no error has occurred."""
        return self.error is None and self.state in (_S.IN_TRANSACTION, _S.ABORTING)

    def move(self, to: TransactionState) -> None:
        """Change the state. Only the changes in TRANSITIONS are allowed."""
        assert to in TRANSITIONS[self.state], f"a transaction can't go from {self.state.value} to {to.value}"
        self.state = to
        self._gate.is_open = to is _S.PARTICIPANT or (to is _S.IN_TRANSACTION and self.role.may_write)

    # for the user's calls

    def check_may_send(self) -> None:
        """Raise an error unless a record may be sent now.

        Raises:
            IllegalStateError: no transaction is open.
            TransactionError: the transaction has failed.
        """
        if self._gate.is_open:
            return
        if self.rejects_records and self.error is not None:
            raise copy(self.error)
        if self.state is _S.IN_TRANSACTION and not self.role.may_write:
            raise IllegalStateError(
                f"send: the producer {self.transactional_id!r} has resumed a transaction, and can only commit or abort "
                "it, because only the producers that wrote the records know the next sequence numbers"
            )
        raise self._wrong_state("send")

    def check_is_still(self, number: int) -> None:
        """Raise an error unless the current transaction has this number and a record may be sent now.

        Raises:
            IllegalStateError: another transaction began while a call to `send` was waiting; the record belongs to the
                old one.
            TransactionError: the transaction has failed.
        """
        self.check_may_send()
        if number != self.number:
            raise IllegalStateError(
                "the transaction in which send was called ended while the call waited; nothing was buffered"
            )

    def check(self, call: str, *allowed: TransactionState) -> None:
        """Raise an error unless the state is one of `allowed`.

        Raises:
            IllegalStateError: the call is not allowed in this state.
            TransactionError: the transaction has failed, and another call is needed first.
        """
        if self.state is _S.NONE:
            raise IllegalStateError(f"{call} requires a producer with a transactional_id")
        if self.state in allowed:
            return
        if self.rejects_records and self.error is not None:
            raise copy(self.error)
        raise self._wrong_state(call)

    @property
    def why_stuck(self) -> str | None:
        """The reason why no transaction can begin, not even after an abort; None in any other state."""
        return self._described() if self.state in _STUCK else None

    def _wrong_state(self, call: str) -> IllegalStateError:
        return IllegalStateError(f"{call} cannot be called now: {self._described()}")

    def _described(self) -> str:
        return f"the producer {self.transactional_id!r} is {self.state.value}; {WAYS_OUT[self.state]}"

    def begin(self, *, is_v2: bool) -> None:
        """Begin a transaction, which uses the same protocol version throughout.

        The transaction uses v2 if the cluster has finalized v2 (`is_v2`) and the current epoch has had no v1
        transaction.
        """
        self.role = OWNER
        self.move(_S.IN_TRANSACTION)
        self.number += 1
        self.is_v2 = is_v2 and not self.epoch_began_v1
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

    def coordinator_hears(self) -> None:
        """Record that the coordinator is about to learn of the transaction."""
        self.may_have_started = True
        self.epoch_began_v1 = not self.is_v2

    def epoch_changed(self) -> None:
        """Record that a new epoch has begun: the next batch of each partition starts at sequence 0."""
        self.epoch_is_spent = self.epoch_began_v1 = False
        self.written.clear()
        self.numbered.clear()

    @property
    def needs_epoch(self) -> bool:
        """True if a new epoch is needed and ending the transaction will not provide one."""
        return self.epoch_is_spent and not (self.is_v2 and self.may_have_started)

    def resume(self, handle: TransactionHandle) -> None:
        """Take over a transaction that another producer began and released. The epoch ends with the transaction."""
        self.role = HEIR
        self.move(_S.IN_TRANSACTION)
        self.number += 1
        self.is_v2 = handle.is_v2
        self.may_have_started = handle.has_begun
        self.epoch_is_spent = True
        for group_id, place, offset in handle.doubtful_offsets:
            self.doubtful_offsets.setdefault(group_id, {})[place] = offset

    def attach(
        self, handle: TransactionHandle, partitions: Iterable[TopicPartition], *, detects_repetitions: bool
    ) -> None:
        """Take part in a transaction that another producer began, and write only to these partitions."""
        self.role = Participant(partitions, detects_repetitions=detects_repetitions)
        self.move(_S.PARTICIPANT)
        self.is_v2 = handle.is_v2
        if not self.role.asks_leaders:
            self.add_joined(self.role.partitions)

    # for the sender

    def admit(self, topic: str, partition: int) -> bool:
        """Return whether records may be written to this partition now. If the partition has to join the
        transaction first, add it to `wanted`."""
        if self.state is _S.NONE:
            return True
        is_participant = self.state is _S.PARTICIPANT
        if not is_participant and (self.state not in _OPEN or self.changes_epoch):
            return False
        if self.is_v2 and not is_participant:
            return True
        place = TopicPartition(topic, partition)
        if place in self.partitions:
            return True
        self.wanted[place] = None
        return False

    def is_anothers(self, topic: str, partition: int) -> bool:
        """Return whether the partition was exported.

        If this producer also wrote to the partition, some records would be lost even though every response would
        report success.
        """
        return bool(self.exported) and TopicPartition(topic, partition) in self.exported

    @property
    def has_to_join(self) -> bool:
        """True if partitions are waiting to join and the transaction can still accept them.

        The owner has already added a participant's partitions; they wait until their leaders have been checked."""
        return bool(self.wanted) and (self.state in _OPEN or self.state is _S.PARTICIPANT)

    def writes_to(self, topic: str, partition: int) -> None:
        """Mark this partition as about to be written to. With v2, this adds the partition to the transaction."""
        place = TopicPartition(topic, partition)
        self.written[place] = None
        if self.is_v2:
            self.may_have_started = True
            self.partitions[place] = None

    def add_joined(self, places: Iterable[TopicPartition]) -> None:
        """Record that the coordinator has added these partitions to the transaction."""
        for place in places:
            self.wanted.pop(place, None)
            self.partitions[place] = None

    def require_abort(self, error: TransactionError) -> None:
        """Record that the transaction can no longer be committed. The first cause is kept."""
        if self.state in _OPEN:
            self.error = error
            self.move(_S.ABORT_REQUIRED)
        elif self.state is _S.PARTICIPANT:
            self.error = error
            self.move(_S.FAILED_PARTICIPANT)

    def note_rejected(self, number: int, cause: BaseException) -> None:
        """Require an abort because a record of transaction `number` was rejected without an exception.

        That transaction can no longer be committed, not even by a producer that takes it over. Do nothing if
        the transaction has ended or is about to end, or if this producer is only a participant.
        """
        if number == self.number and self.state in (_S.IN_TRANSACTION, _S.RELEASING):
            self.require_abort(abortable(self, cause))

    def require_reinit(self, error: TransactionError) -> None:
        """Record that this epoch can no longer be used."""
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
    """Return the error for a transaction that can't be committed because a record failed or a request was rejected."""
    return TransactionAbortableError(
        f"the transaction of {transaction.transactional_id!r} can only be aborted: {cause}",
        transactional_id=transaction.transactional_id,
        last_error=cause,
    )


def reinit(
    transaction: Transaction, kind: type[TransactionReinitError], reason: str
) -> TransactionReinitError:
    """Return the error for a producer that needs a new epoch."""
    state = _S.OUTCOME_UNKNOWN if issubclass(kind, CommitOutcomeUnknownError) else _S.REINIT_REQUIRED
    return kind(
        f"{transaction.transactional_id!r}: {reason}; {WAYS_OUT[state]}",
        transactional_id=transaction.transactional_id,
    )
