"""The decisions of a transaction coordinator: the states of one transactional id and the transitions between them.

The module is pure: it checks a request and returns the new state, which takes effect once it is in the log.
No function in this module awaits or uses sockets; TransactionCoordinator carries out the decisions. The rules come from
Kafka 4.3's TransactionCoordinator and TransactionMetadata.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from aioproducer.types import TopicPartition

MAX_EPOCH = 2**15 - 1
LAST_EPOCH = MAX_EPOCH - 1
"""The highest epoch that a producer gets; the next one is reserved for fencing and for markers."""

NO_TIMESTAMP = -1


class TransactionStatus(IntEnum):
    """The states of a transactional id, with their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


_S = TransactionStatus

TRANSITIONS: dict[TransactionStatus, frozenset[TransactionStatus]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT, _S.PREPARE_EPOCH_FENCE}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.PREPARE_ABORT}),
}
"""The valid transitions. With transactions v2 (KIP-890), an abort can also follow EMPTY and COMPLETE_*."""

PREPARED = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
COMPLETED = (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)


class TransactionRefused(Exception):
    """The coordinator answers with this code and changes nothing. NONE means that the requested state has already been
    reached."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a producer."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of a transactional id at one point in time, as stored in a record of the log."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    state: TransactionStatus = TransactionStatus.EMPTY
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump that the producer itself requested (KIP-360). It is not stored in the log."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id that the producer will get once the markers are written, if its present id has no epochs left."""
    partitions: tuple[TopicPartition, ...] = ()
    """The partitions, in the order in which they were added."""
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    client_version: int = 0
    """The transaction.version of the client's requests."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if the next epoch requires another producer id."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer id and the epoch."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)


class TransactionalId:
    """One transactional id: its state, and the state that is being written to the log."""

    def __init__(self, metadata: TransactionMetadata) -> None:
        self.metadata = metadata
        self.pending: TransactionMetadata | None = None
        """The next state. While it is set, requests are answered with CONCURRENT_TRANSACTIONS."""

    @property
    def state(self) -> TransactionStatus:
        """The current state."""
        return self.metadata.state

    def settle(self) -> None:
        """Make the pending state the current one, because it is now in the log."""
        assert self.pending is not None
        self.metadata, self.pending = self.pending, None

    def give_up(self) -> None:
        """Discard the pending state, because it could not be written."""
        self.pending = None

    # Every change of state goes through _move(); TRANSITIONS lists the valid ones.
    def _move(
        self, to: TransactionMetadata, *, through: tuple[TransactionStatus, ...] = ()
    ) -> TransactionMetadata:
        for before, after in itertools.pairwise((self.state, *through, to.state)):
            if after not in TRANSITIONS[before]:
                raise RuntimeError(
                    f"transactional id {to.transactional_id} is {before.name}, so it can't become {after.name}"
                )
        self.pending = to
        return to

    # The methods for requests. Each one returns the state to be written, or raises TransactionRefused.

    def init_producer_id(
        self,
        expected: ProducerIdAndEpoch | None,
        *,
        timeout_ms: int,
        now_ms: int,
        server_version: int,
        new_producer_id: Callable[[], int],
    ) -> TransactionMetadata:
        """Return the state with a new epoch or, if a transaction is open, the state that aborts it (PREPARE_ABORT)."""
        if self.pending is not None:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        now = self.metadata
        if expected is not None and not self._may_ask(expected):
            raise TransactionRefused(ErrorCode.PRODUCER_FENCED)
        if self.state in PREPARED:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.state is TransactionStatus.ONGOING:
            # The expected epoch is not checked here, so a zombie's call aborts its successor's transaction.
            return self.fence(server_version=server_version, now_ms=now_ms)
        fresh = replace(
            now,
            state=TransactionStatus.EMPTY,
            timeout_ms=timeout_ms,
            previous_producer_id=now.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=(),
            started_ms=NO_TIMESTAMP,
            updated_ms=now_ms,
        )
        if now.is_epoch_exhausted and (expected is None or expected.epoch == now.producer_epoch):
            last = NO_PRODUCER_EPOCH if expected is None else now.producer_epoch
            fresh = replace(fresh, producer_id=new_producer_id(), producer_epoch=0, last_producer_epoch=last)
        else:
            epoch, last = self._next_epochs(expected)
            fresh = replace(fresh, producer_epoch=epoch, last_producer_epoch=last)
        return self._move(fresh)

    def _may_ask(self, expected: ProducerIdAndEpoch) -> bool:
        """Return True if a producer with this id may request a new epoch; its epoch is checked later."""
        now = self.metadata
        return (
            now.producer_epoch == NO_PRODUCER_EPOCH  # the transactional id is new
            or expected.producer_id == now.producer_id
            # This is a retry of the call that used the last epoch of the previous id; the response was lost.
            or (expected.producer_id == now.previous_producer_id and expected.epoch >= LAST_EPOCH)
        )

    def _next_epochs(self, expected: ProducerIdAndEpoch | None) -> tuple[int, int]:
        """Return the new epoch, and the previous one if a producer with that epoch may retry the request."""
        now = self.metadata
        if expected is None:
            return now.producer_epoch + 1, NO_PRODUCER_EPOCH
        if now.producer_epoch == NO_PRODUCER_EPOCH or expected.epoch == now.producer_epoch:
            return now.producer_epoch + 1, now.producer_epoch
        if expected.epoch == now.last_producer_epoch:
            return now.producer_epoch, now.last_producer_epoch  # a retry of a call that succeeded
        raise TransactionRefused(ErrorCode.PRODUCER_FENCED)

    def check_producer(self, producer_id: int, epoch: int) -> None:
        """Reject a producer that does not own this transactional id; while markers are due, reject every producer."""
        if self.metadata.producer_id != producer_id:
            raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self.metadata.producer_epoch != epoch:
            raise TransactionRefused(ErrorCode.PRODUCER_FENCED)
        if self.state in PREPARED:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)

    def add_partitions(
        self,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
        now_ms: int,
    ) -> TransactionMetadata:
        """Open the transaction if it is not open, and add these partitions to it."""
        if self.pending is not None:
            # Check this first: with transactions v2, the producer can already have an id that is only pending here.
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        self.check_producer(producer_id, epoch)
        now = self.metadata
        is_open = self.state is TransactionStatus.ONGOING
        have = now.partitions if is_open else ()
        together = tuple(dict.fromkeys((*have, *partitions)))
        if is_open and together == have:
            raise TransactionRefused(ErrorCode.NONE)
        return self._move(
            replace(
                now,
                state=TransactionStatus.ONGOING,
                previous_producer_id=now.producer_id,
                partitions=together,
                started_ms=now.started_ms if is_open else now_ms,
                updated_ms=now_ms,
                client_version=client_version,
            )
        )

    def fence(self, *, server_version: int, now_ms: int) -> TransactionMetadata:
        """Abort the open transaction with a new epoch, so that its producer is fenced.

        With transactions v2, that producer can still get the new epoch, because the old one is remembered."""
        now = self.metadata
        return self._move(
            replace(
                now,
                state=TransactionStatus.PREPARE_ABORT,
                producer_epoch=now.producer_epoch + 1,
                last_producer_epoch=now.producer_epoch if server_version >= 2 else NO_PRODUCER_EPOCH,
                previous_producer_id=now.producer_id,
                updated_ms=now_ms,
                client_version=server_version,
            ),
            through=(TransactionStatus.PREPARE_EPOCH_FENCE,),
        )

    def end(self, producer_id: int, epoch: int, *, commit: bool, now_ms: int) -> TransactionMetadata:
        """Return the prepared state for EndTxn up to version 4; the producer keeps its epoch."""
        if self.metadata.producer_id != producer_id:
            raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self.metadata.producer_epoch != epoch:
            raise TransactionRefused(ErrorCode.PRODUCER_FENCED)
        if self.pending is not None:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        prepared, completed = _ending(commit)
        if self.state is completed:
            raise TransactionRefused(ErrorCode.NONE)
        if self.state is prepared:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.state is not TransactionStatus.ONGOING:
            raise TransactionRefused(ErrorCode.INVALID_TXN_STATE)
        now = self.metadata
        return self._move(
            replace(
                now,
                state=prepared,
                previous_producer_id=now.producer_id,
                updated_ms=now_ms,
                client_version=0,
            )
        )

    def end_and_bump(
        self, producer_id: int, epoch: int, *, commit: bool, now_ms: int, new_producer_id: Callable[[], int]
    ) -> TransactionMetadata:
        """Return the prepared state for EndTxn from version 5 on; the producer gets a new epoch (KIP-890)."""
        if self.pending is not None:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        now = self.metadata
        has_rotated = (
            now.previous_producer_id == producer_id and epoch == LAST_EPOCH and now.producer_epoch == 0
        )
        has_bumped = now.producer_epoch == epoch + 1
        if now.producer_id != producer_id and not has_rotated:
            raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not self._is_valid_to_end(epoch, has_bumped, has_rotated):
            raise TransactionRefused(ErrorCode.PRODUCER_FENCED)
        is_retry = has_bumped or has_rotated
        prepared, completed = _ending(commit)
        if is_retry and self.state is completed:
            raise TransactionRefused(ErrorCode.NONE)
        if self.state is prepared:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_empty = self.state is TransactionStatus.EMPTY or self.state in COMPLETED
        if self.state is not TransactionStatus.ONGOING and not (is_empty and not commit and not is_retry):
            raise TransactionRefused(ErrorCode.INVALID_TXN_STATE)
        return self._move(
            replace(
                now,
                state=prepared,
                producer_epoch=now.producer_epoch + 1,
                last_producer_epoch=now.producer_epoch,
                previous_producer_id=now.producer_id,
                next_producer_id=new_producer_id() if now.is_epoch_exhausted else NO_PRODUCER_ID,
                started_ms=now_ms if is_empty else now.started_ms,
                updated_ms=now_ms,
                client_version=2,
            )
        )

    def _is_valid_to_end(self, epoch: int, has_bumped: bool, has_rotated: bool) -> bool:
        """Return True if the epoch fits the state. This distinguishes a retry from the end of the next transaction."""
        is_current = epoch == self.metadata.producer_epoch
        if self.state in PREPARED:
            return has_bumped
        if self.state in COMPLETED:
            return is_current or has_bumped or has_rotated
        return is_current

    def complete(self, *, now_ms: int) -> TransactionMetadata:
        """Return the state to be written after all markers; the state is pending from now on."""
        now = self.metadata
        is_commit = self.state is TransactionStatus.PREPARE_COMMIT
        rotates = now.next_producer_id != NO_PRODUCER_ID
        return self._move(
            replace(
                now,
                state=_ending(is_commit)[1],
                producer_id=now.next_producer_id if rotates else now.producer_id,
                producer_epoch=0 if rotates else now.producer_epoch,
                previous_producer_id=now.producer_id,
                next_producer_id=NO_PRODUCER_ID,
                partitions=(),
                updated_ms=now_ms,
            )
        )

    def expire(self) -> None:
        """Forget a transactional id that has been unused for a long time. Raises TransactionRefused if it is in use."""
        if self.pending is not None or TransactionStatus.DEAD not in TRANSITIONS[self.state]:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        self._move(replace(self.metadata, state=TransactionStatus.DEAD))


def _ending(commit: bool) -> tuple[TransactionStatus, TransactionStatus]:
    if commit:
        return TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT
    return TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT
