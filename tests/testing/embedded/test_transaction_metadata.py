"""The states of a transactional id: its transitions for each request, and the rejected requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.transaction_metadata import (
    LAST_EPOCH,
    MAX_EPOCH,
    TRANSITIONS,
    ProducerIdAndEpoch,
    TransactionalId,
    TransactionMetadata,
    TransactionRefused,
    TransactionStatus,
)
from aioproducer.types import TopicPartition
from tests.support.transaction_stage import (
    BUSY,
    FENCED,
    INVALID_STATE,
    OK,
)

# The state machine


def transaction(state: TransactionStatus = TransactionStatus.EMPTY, **fields: Any) -> TransactionalId:
    fields = {"producer_id": 7, "producer_epoch": 3, **fields}
    if state in (
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_COMMIT,
        TransactionStatus.PREPARE_ABORT,
    ):
        fields = {"partitions": (TopicPartition("t", 0),), "started_ms": 1, **fields}
    return TransactionalId(TransactionMetadata("txn", timeout_ms=1000, state=state, **fields))


ME = ProducerIdAndEpoch(7, 3)


@pytest.mark.promise(
    "Test clusters",
    "the embedded coordinator's states form a table, and each is written to the log before the response",
)
@pytest.mark.parametrize("before", TransactionStatus)
@pytest.mark.parametrize("after", TransactionStatus)
def test_only_the_transitions_of_the_table_are_possible(before, after):
    one = transaction(before)
    to = replace(one.metadata, state=after)

    if after in TRANSITIONS[before]:
        assert one._move(to) is to
        assert one.pending is to
        assert one.state is before
        one.settle()
        assert one.state is after
    else:
        with pytest.raises(RuntimeError, match=f"{before.name}, so it can't become {after.name}"):
            one._move(to)
        assert one.pending is None


def test_only_a_dead_transactional_id_never_changes():
    assert [state for state, after in TRANSITIONS.items() if not after] == [TransactionStatus.DEAD]
    assert set(itertools.chain(*TRANSITIONS.values())) == set(TransactionStatus)


REQUESTS: dict[str, Callable[[TransactionalId], TransactionMetadata]] = {
    "init": lambda one: one.init_producer_id(
        None, timeout_ms=1, now_ms=9, server_version=2, new_producer_id=lambda: 99
    ),
    "add": lambda one: one.add_partitions(*ME, [TopicPartition("t", 1)], client_version=2, now_ms=9),
    "commit": lambda one: one.end(*ME, commit=True, now_ms=9),
    "abort": lambda one: one.end(*ME, commit=False, now_ms=9),
    "commit v5": lambda one: one.end_and_bump(*ME, commit=True, now_ms=9, new_producer_id=lambda: 99),
    "abort v5": lambda one: one.end_and_bump(*ME, commit=False, now_ms=9, new_producer_id=lambda: 99),
}

_S = TransactionStatus
# The answer to a producer with the current epoch in each state: the next state, or an error code.
ANSWERS: dict[str, dict[TransactionStatus, TransactionStatus | ErrorCode]] = {
    "init": {
        _S.EMPTY: _S.EMPTY,
        _S.ONGOING: _S.PREPARE_ABORT,
        _S.PREPARE_COMMIT: BUSY,
        _S.PREPARE_ABORT: BUSY,
        _S.COMPLETE_COMMIT: _S.EMPTY,
        _S.COMPLETE_ABORT: _S.EMPTY,
    },
    "add": {
        _S.EMPTY: _S.ONGOING,
        _S.ONGOING: _S.ONGOING,
        _S.PREPARE_COMMIT: BUSY,
        _S.PREPARE_ABORT: BUSY,
        _S.COMPLETE_COMMIT: _S.ONGOING,
        _S.COMPLETE_ABORT: _S.ONGOING,
    },
    "commit": {
        _S.EMPTY: INVALID_STATE,
        _S.ONGOING: _S.PREPARE_COMMIT,
        _S.PREPARE_COMMIT: BUSY,
        _S.PREPARE_ABORT: INVALID_STATE,
        _S.COMPLETE_COMMIT: OK,
        _S.COMPLETE_ABORT: INVALID_STATE,
    },
    "abort": {
        _S.EMPTY: INVALID_STATE,
        _S.ONGOING: _S.PREPARE_ABORT,
        _S.PREPARE_COMMIT: INVALID_STATE,
        _S.PREPARE_ABORT: BUSY,
        _S.COMPLETE_COMMIT: INVALID_STATE,
        _S.COMPLETE_ABORT: OK,
    },
    "commit v5": {
        _S.EMPTY: INVALID_STATE,
        _S.ONGOING: _S.PREPARE_COMMIT,
        _S.PREPARE_COMMIT: FENCED,
        _S.PREPARE_ABORT: FENCED,
        _S.COMPLETE_COMMIT: INVALID_STATE,
        _S.COMPLETE_ABORT: INVALID_STATE,
    },
    "abort v5": {
        _S.EMPTY: _S.PREPARE_ABORT,
        _S.ONGOING: _S.PREPARE_ABORT,
        _S.PREPARE_COMMIT: FENCED,
        _S.PREPARE_ABORT: FENCED,
        _S.COMPLETE_COMMIT: _S.PREPARE_ABORT,
        _S.COMPLETE_ABORT: _S.PREPARE_ABORT,
    },
}


@pytest.mark.parametrize(
    ("request_name", "state", "expected"),
    [(name, state, answer) for name, row in ANSWERS.items() for state, answer in row.items()],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_request_in_each_state_gets_the_expected_answer(request_name, state, expected):
    one = transaction(state)

    if isinstance(expected, TransactionStatus):
        assert REQUESTS[request_name](one).state is expected
        with pytest.raises(TransactionRefused, match="CONCURRENT_TRANSACTIONS"):
            REQUESTS[request_name](one)
    else:
        with pytest.raises(TransactionRefused, match=expected.name):
            REQUESTS[request_name](one)
        assert one.pending is None


@pytest.mark.parametrize("name", REQUESTS)
def test_while_a_state_is_being_written_requests_are_rejected_with_concurrent_transactions(name):
    one = transaction(TransactionStatus.ONGOING)
    one.end(*ME, commit=True, now_ms=9)

    with pytest.raises(TransactionRefused, match="CONCURRENT_TRANSACTIONS"):
        REQUESTS[name](one)


def test_a_failed_write_changes_nothing():
    one = transaction(TransactionStatus.ONGOING)
    before = one.metadata
    one.end_and_bump(*ME, commit=True, now_ms=9, new_producer_id=lambda: 99)

    one.give_up()

    assert (one.metadata, one.pending) == (before, None)


def test_the_last_epoch_ends_with_a_new_producer_id_whose_marker_has_the_reserved_epoch():
    one = transaction(TransactionStatus.ONGOING, producer_epoch=LAST_EPOCH)

    one.end_and_bump(7, LAST_EPOCH, commit=True, now_ms=9, new_producer_id=lambda: 99)
    one.settle()
    assert one.metadata.identity == (7, MAX_EPOCH)
    one.complete(now_ms=9)
    one.settle()

    assert one.metadata.identity == (99, 0)
    with pytest.raises(TransactionRefused, match="NONE"):  # a retry
        one.end_and_bump(7, LAST_EPOCH, commit=True, now_ms=9, new_producer_id=lambda: 100)
    with pytest.raises(TransactionRefused, match="INVALID_TXN_STATE"):
        one.end_and_bump(7, LAST_EPOCH, commit=False, now_ms=9, new_producer_id=lambda: 100)


@pytest.mark.parametrize("epoch", [LAST_EPOCH, MAX_EPOCH])
def test_init_producer_id_returns_a_new_producer_id_when_the_epochs_are_used_up(epoch):
    one = transaction(producer_epoch=epoch)

    to = one.init_producer_id(None, timeout_ms=1, now_ms=9, server_version=2, new_producer_id=lambda: 99)

    assert to.identity == (99, 0)


def test_a_producer_that_missed_the_new_producer_id_gets_it_again():
    one = transaction(producer_epoch=LAST_EPOCH)
    expected = ProducerIdAndEpoch(7, LAST_EPOCH)

    def ask() -> TransactionMetadata:
        to = one.init_producer_id(
            expected, timeout_ms=1, now_ms=9, server_version=2, new_producer_id=lambda: 99
        )
        one.settle()
        return to

    assert ask().identity == (99, 0)
    assert ask().identity == (99, 0)
