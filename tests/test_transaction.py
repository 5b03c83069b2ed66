"""The state table of transactions: every pair, every call in every state."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from aioproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from aioproducer.transaction import (
    TRANSITIONS,
    WAYS_OUT,
    Transaction,
    TransactionState,
    abortable,
    reinit,
)
from aioproducer.types import TopicPartition

S = TransactionState


class Gate:
    is_open = True


def transaction_in(state, *, is_v2=True):
    """A transaction that came to `state` by legal moves."""
    transaction = Transaction(None if state is S.NONE else "tx", Gate())
    paths = {S.NONE: [], S.UNINITIALIZED: []}
    frontier = [S.UNINITIALIZED]
    while frontier:
        here = frontier.pop(0)
        for to in TRANSITIONS[here]:
            if to not in paths:
                paths[to] = [*paths[here], to]
                frontier.append(to)
    for to in paths[state]:
        if to is S.IN_TRANSACTION:
            transaction.begin(is_v2=is_v2)
        else:
            transaction.move(to)
    return transaction


@pytest.mark.parametrize(("here", "to"), list(itertools.product(S, S)), ids=lambda state: state.name)
def test_a_transaction_makes_the_moves_of_the_table_and_no_other(here, to):
    transaction = transaction_in(here)

    if to in TRANSITIONS[here]:
        transaction.move(to)
        assert transaction.state is to
    else:
        with pytest.raises(AssertionError, match="can't go from"):
            transaction.move(to)
        assert transaction.state is here


def test_every_state_can_be_reached_and_each_but_two_can_be_left():
    reached = {S.NONE, S.UNINITIALIZED, *itertools.chain.from_iterable(TRANSITIONS.values())}

    assert reached == set(S)
    assert [state for state in S if not TRANSITIONS[state]] == [S.NONE, S.FAILED_PARTICIPANT]
    assert set(WAYS_OUT) == set(S) - {S.NONE}


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_records_are_taken_in_a_transaction_only_and_always_without_transactions(state):
    transaction = transaction_in(state)

    if state in (S.NONE, S.IN_TRANSACTION, S.PARTICIPANT):
        transaction.check_may_send()
    else:
        with pytest.raises(IllegalStateError, match="tx"):
            transaction.check_may_send()
    assert transaction._gate.is_open is (state in (S.NONE, S.IN_TRANSACTION, S.PARTICIPANT))


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_call_that_does_not_fit_says_what_would(state):
    transaction = transaction_in(state)

    transaction_call = pytest.raises(IllegalStateError)
    with transaction_call as caught:
        transaction.check("commit_transaction")
    if state is S.NONE:
        assert "transactional_id" in str(caught.value)
    else:
        assert WAYS_OUT[state] in str(caught.value)
        assert state.value in str(caught.value)


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_batches_are_drained_while_the_transaction_is_open_or_committing(state):
    transaction = transaction_in(state)

    assert transaction.may_drain("t", 0) is (state in (S.NONE, S.IN_TRANSACTION, S.COMMITTING))


def test_with_v2_a_partition_joins_by_being_written_to():
    transaction = transaction_in(S.IN_TRANSACTION)
    assert transaction.may_drain("t", 0)
    assert not transaction.may_have_started

    transaction.writes_to("t", 0)

    assert transaction.may_have_started
    assert list(transaction.partitions) == [TopicPartition("t", 0)]
    assert not transaction.wanted


def test_with_v1_a_partition_has_to_join_first():
    transaction = transaction_in(S.IN_TRANSACTION, is_v2=False)

    assert not transaction.may_drain("t", 0)
    assert list(transaction.wanted) == [TopicPartition("t", 0)]
    transaction.joined([TopicPartition("t", 0)])

    assert transaction.may_drain("t", 0)
    assert not transaction.wanted
    assert not transaction.may_drain("t", 1)


def test_a_new_transaction_knows_nothing_of_the_last_one():
    transaction = transaction_in(S.IN_TRANSACTION)
    transaction.writes_to("t", 0)
    transaction.epoch_is_spent = True
    transaction.groups["g"] = None
    transaction.must_abort(abortable(transaction, KafkaError("first")))
    transaction.move(S.ABORTING)
    transaction.move(S.READY)

    transaction.begin(is_v2=False)

    assert (transaction.may_have_started, transaction.epoch_is_spent, transaction.error) == (
        False,
        False,
        None,
    )
    assert (transaction.partitions, transaction.wanted, transaction.groups) == ({}, {}, {})


def test_the_first_cause_of_an_abort_is_kept():
    transaction = transaction_in(S.IN_TRANSACTION)

    transaction.must_abort(abortable(transaction, KafkaError("first")))
    transaction.must_abort(abortable(transaction, KafkaError("second")))

    assert transaction.state is S.ABORT_REQUIRED
    with pytest.raises(TransactionAbortableError, match="first"):
        transaction.check_may_send()
    with pytest.raises(TransactionAbortableError, match="first"):
        transaction.check("commit_transaction", S.IN_TRANSACTION)


@pytest.mark.parametrize(
    "state",
    [S.INITIALIZING, S.IN_TRANSACTION, S.COMMITTING, S.ABORT_REQUIRED, S.ABORTING],
    ids=lambda state: state.name,
)
def test_a_fenced_producer_needs_a_new_epoch_from_wherever_it_is(state):
    transaction = transaction_in(state)

    transaction.must_reinit(reinit(transaction, ProducerFencedError, "fenced"))

    assert transaction.state is S.REINIT_REQUIRED
    with pytest.raises(ProducerFencedError, match="init_transactions"):
        transaction.check_may_send()


def test_a_commit_without_an_answer_leaves_a_state_of_its_own():
    transaction = transaction_in(S.COMMITTING)

    transaction.must_reinit(reinit(transaction, CommitOutcomeUnknownError, "not answered"))

    assert transaction.state is S.OUTCOME_UNKNOWN
    assert TRANSITIONS[S.OUTCOME_UNKNOWN] == (S.INITIALIZING,), "nothing else may follow"


@pytest.mark.parametrize("state", [S.READY, S.ABORTING, S.UNINITIALIZED], ids=lambda state: state.name)
def test_a_late_failure_does_not_disturb_a_transaction_that_has_ended(state):
    transaction = transaction_in(state)

    transaction.must_abort(abortable(transaction, KafkaError("late")))

    assert transaction.state is state


def drawn() -> str:
    """The table as DESIGN.md shows it."""
    lines = [
        f"{state.name:16} -> {', '.join(to.name for to in TRANSITIONS[state])}"
        for state in S
        if TRANSITIONS[state]
    ]
    return "\n".join(lines)


def test_the_design_shows_the_table():
    design = (Path(__file__).parent.parent / "DESIGN.md").read_text()

    assert f"```\n{drawn()}\n```" in design
