"""The state table of transactions: every pair of states, and every call in every state."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from aioproducer.errors import (
    CommitOutcomeUnknownError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from aioproducer.records._record_path import Gate
from aioproducer.transactions.roles import OWNER
from aioproducer.transactions.state import (
    TRANSITIONS,
    WAYS_OUT,
    Transaction,
    TransactionState,
    abortable,
    reinit,
)
from aioproducer.types import OffsetAndMetadata, TopicPartition, TransactionHandle

S = TransactionState


WORDS = {
    S.UNINITIALIZED: "wait for start()",
    S.INITIALIZING: "wait for init_transactions()",
    S.READY: "begin_transaction()",
    S.IN_TRANSACTION: "commit or abort",
    S.COMMITTING: "wait for commit_transaction()",
    S.RELEASING: "wait for release_transaction()",
    S.ABORT_REQUIRED: "call abort_transaction()",
    S.ABORTING: "wait for abort_transaction()",
    S.OUTCOME_UNKNOWN: "find out",
    S.REINIT_REQUIRED: "take over the transactional id",
    S.PARTICIPANT: "only the producer that began",
    S.FAILED_PARTICIPANT: "with the producer that began it",
}
"""Words that the way out of each state must contain."""

OPEN = (S.IN_TRANSACTION, S.COMMITTING, S.RELEASING)
"""The states in which buffered records are still sent."""


def transaction_in(state, *, is_v2=True):
    """Return a transaction that has reached `state` by allowed transitions."""
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


@pytest.mark.promise("Transactions", "a transaction's states and their moves are a table")
@pytest.mark.parametrize(("here", "to"), list(itertools.product(S, S)), ids=lambda state: state.name)
def test_only_the_transitions_of_the_table_are_allowed(here, to):
    transaction = transaction_in(here)

    if to in TRANSITIONS[here]:
        transaction.move(to)
        assert transaction.state is to
    else:
        with pytest.raises(AssertionError, match="can't go from"):
            transaction.move(to)
        assert transaction.state is here


def test_every_state_can_be_reached_and_all_but_two_can_be_left():
    reached = {S.NONE, S.UNINITIALIZED, *itertools.chain.from_iterable(TRANSITIONS.values())}

    assert reached == set(S)
    assert [state for state in S if not TRANSITIONS[state]] == [S.NONE, S.FAILED_PARTICIPANT]
    assert set(WAYS_OUT) == set(S) - {S.NONE}


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_records_are_accepted_only_in_a_transaction_or_without_a_transactional_id(state):
    transaction = transaction_in(state)

    if state in (S.NONE, S.IN_TRANSACTION, S.PARTICIPANT):
        transaction.check_may_send()
    else:
        with pytest.raises(IllegalStateError, match="tx"):
            transaction.check_may_send()
    assert transaction._gate.is_open is (state in (S.NONE, S.IN_TRANSACTION, S.PARTICIPANT))


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_the_error_of_a_disallowed_call_says_what_to_do(state):
    transaction = transaction_in(state)

    transaction_call = pytest.raises(IllegalStateError)
    with transaction_call as caught:
        transaction.check("commit_transaction")
    if state is S.NONE:
        assert "transactional_id" in str(caught.value)
    else:
        assert WAYS_OUT[state] in str(caught.value)
        assert state.value in str(caught.value)


@pytest.mark.parametrize("state", WORDS, ids=lambda state: state.name)
def test_an_allowed_call_also_passes_after_an_error(state):
    transaction = transaction_in(state)
    transaction.error = abortable(transaction, KafkaError("first"))

    transaction.check("abort_transaction", S.READY, state)


def test_a_producer_without_a_transactional_id_has_no_transactions():
    assert [state for state in S if not transaction_in(state).is_used] == [S.NONE]


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_records_are_rejected_in_a_failed_transaction(state):
    lost = {S.ABORT_REQUIRED, S.ABORTING, S.OUTCOME_UNKNOWN, S.REINIT_REQUIRED, S.FAILED_PARTICIPANT}

    assert transaction_in(state).rejects_records is (state in lost)


@pytest.mark.parametrize("state", WORDS, ids=lambda state: state.name)
def test_each_state_has_its_own_way_out(state):
    assert [other for other in WAYS_OUT if WORDS[state] in WAYS_OUT[other]] == [state]


def test_a_call_between_transactions_does_not_raise_the_error_of_the_last_one():
    transaction = transaction_in(S.IN_TRANSACTION)
    transaction.require_abort(abortable(transaction, KafkaError("first")))
    transaction.move(S.ABORTING)
    transaction.move(S.READY)

    for call in (
        transaction.check_may_send,
        lambda: transaction.check("commit_transaction", S.IN_TRANSACTION),
    ):
        with pytest.raises(IllegalStateError, match="begin_transaction") as caught:
            call()
        assert type(caught.value) is IllegalStateError


def test_record_belongs_to_the_transaction_that_was_open_when_send_was_called():
    transaction = transaction_in(S.IN_TRANSACTION)
    transaction.check_is_still(1)
    transaction.move(S.ABORTING)
    with pytest.raises(IllegalStateError, match="abort_transaction"):
        transaction.check_is_still(1)
    transaction.move(S.READY)
    transaction.begin(is_v2=True)

    with pytest.raises(IllegalStateError, match="nothing was buffered"):
        transaction.check_is_still(1)

    transaction.check_is_still(2)


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_batches_are_drained_while_the_transaction_is_open_or_committing(state):
    transaction = transaction_in(state)

    assert transaction.admit("t", 0) is (state in (S.NONE, *OPEN))


def test_with_v2_writing_to_a_partition_makes_it_join():
    transaction = transaction_in(S.IN_TRANSACTION)
    assert transaction.admit("t", 0)
    assert not transaction.may_have_started

    transaction.writes_to("t", 0)

    assert transaction.may_have_started
    assert list(transaction.partitions) == [TopicPartition("t", 0)]
    assert not transaction.wanted


def test_with_v1_writing_to_a_partition_does_not_make_it_join():
    transaction = transaction_in(S.IN_TRANSACTION, is_v2=False)

    transaction.writes_to("t", 0)

    assert list(transaction.written) == [TopicPartition("t", 0)]
    assert not transaction.may_have_started
    assert not transaction.partitions


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_partitions_join_only_a_transaction_that_can_still_be_committed(state):
    transaction = transaction_in(state, is_v2=False)
    assert not transaction.has_to_join

    transaction.wanted[TopicPartition("t", 0)] = None

    # A participant's partitions are already in the transaction, but wait for the answers of their leaders.
    assert transaction.has_to_join is (state in (*OPEN, S.PARTICIPANT))


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("asks_leaders", [False, True])
def test_a_participant_that_asks_the_leaders_waits_for_their_answers(is_v2, asks_leaders):
    transaction, place = transaction_in(S.UNINITIALIZED, is_v2=is_v2), TopicPartition("t", 0)
    handle = TransactionHandle("tx", 1, 0, is_v2)
    transaction.attach(handle, [place], detects_repetitions=not asks_leaders)

    assert transaction.admit(*place) is not asks_leaders
    assert transaction.has_to_join is asks_leaders
    transaction.add_joined([place])

    assert transaction.admit(*place)
    assert not transaction.has_to_join


def test_with_v1_a_partition_has_to_join_first():
    transaction = transaction_in(S.IN_TRANSACTION, is_v2=False)

    assert not transaction.admit("t", 0)
    assert list(transaction.wanted) == [TopicPartition("t", 0)]
    transaction.add_joined([TopicPartition("t", 0)])

    assert transaction.admit("t", 0)
    assert not transaction.wanted
    assert not transaction.admit("t", 1)


@pytest.mark.parametrize(
    ("is_v2", "may_have_started", "epoch_is_spent", "needs_epoch"),
    [
        (is_v2, started, spent, spent and (not is_v2 or not started))
        for is_v2, started, spent in itertools.product((False, True), repeat=3)
    ],
)
def test_a_spent_epoch_must_be_replaced_unless_the_end_of_the_transaction_replaces_it(
    is_v2, may_have_started, epoch_is_spent, needs_epoch
):
    transaction = transaction_in(S.IN_TRANSACTION, is_v2=is_v2)
    transaction.may_have_started = may_have_started
    transaction.epoch_is_spent = epoch_is_spent

    assert transaction.needs_epoch is needs_epoch


def test_the_initial_state():
    transaction = Transaction(None, Gate())

    assert transaction.transactional_id == ""
    assert transaction.number == 0
    assert transaction.began is None
    assert (transaction.has_expired, transaction.commit_is_in_doubt) == (False,) * 2
    assert (transaction.is_v2, transaction.may_have_started, transaction.epoch_is_spent) == (False,) * 3
    assert transaction.role is OWNER


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_resumed_transaction_can_only_be_ended(is_v2):
    transaction = transaction_in(S.READY, is_v2=not is_v2)
    number = transaction.number

    transaction.resume(TransactionHandle("tx", 4711, 3, is_v2))

    assert (transaction.state, transaction.is_v2, transaction.number) == (S.IN_TRANSACTION, is_v2, number + 1)
    assert transaction.may_have_started
    assert transaction.epoch_is_spent
    assert not transaction._gate.is_open
    with pytest.raises(
        IllegalStateError, match="'tx' has resumed a transaction, and can only commit or abort it"
    ):
        transaction.check_may_send()
    transaction.move(S.COMMITTING)
    with pytest.raises(IllegalStateError, match=re.escape(WAYS_OUT[S.COMMITTING])):
        transaction.check_may_send()


def test_after_a_resumed_transaction_the_next_one_accepts_records():
    transaction = transaction_in(S.READY)
    transaction.resume(TransactionHandle("tx", 4711, 3, True))
    transaction.move(S.COMMITTING)
    transaction.move(S.READY)

    transaction.begin(is_v2=True)

    transaction.check_may_send()
    assert transaction._gate.is_open


def test_a_new_transaction_keeps_no_state_of_the_last_one():
    transaction = transaction_in(S.IN_TRANSACTION, is_v2=False)
    assert not transaction.admit("t", 1)
    transaction.writes_to("t", 0)
    transaction.add_joined([TopicPartition("t", 0)])
    transaction.exported[TopicPartition("t", 2)] = None
    transaction.may_have_started = True
    transaction.epoch_is_spent = True
    transaction.groups["g"] = None
    transaction.doubtful_offsets["g"] = {}
    transaction.began = 1.0
    transaction.require_abort(abortable(transaction, KafkaError("first")))
    transaction.move(S.ABORTING)
    transaction.move(S.READY)

    transaction.begin(is_v2=False)

    assert (transaction.may_have_started, transaction.epoch_is_spent, transaction.error) == (
        False,
        False,
        None,
    )
    assert (transaction.partitions, transaction.wanted, transaction.groups) == ({}, {}, {})
    assert (transaction.written, transaction.exported, transaction.doubtful_offsets) == ({}, {}, {})
    assert list(transaction.numbered) == [TopicPartition("t", 0)], "the epoch is still the same"
    assert transaction.began is None
    assert transaction.number == 2


@pytest.mark.parametrize("state", OPEN, ids=lambda state: state.name)
def test_the_first_cause_of_an_abort_is_kept(state):
    transaction = transaction_in(state)

    transaction.require_abort(abortable(transaction, KafkaError("first")))
    transaction.require_abort(abortable(transaction, KafkaError("second")))

    assert transaction.state is S.ABORT_REQUIRED
    with pytest.raises(TransactionAbortableError, match="first"):
        transaction.check_may_send()
    with pytest.raises(TransactionAbortableError, match="first"):
        transaction.check("commit_transaction", S.IN_TRANSACTION)


@pytest.mark.parametrize(
    "state",
    [S.INITIALIZING, *OPEN, S.ABORT_REQUIRED, S.ABORTING],
    ids=lambda state: state.name,
)
def test_a_fenced_producer_needs_a_new_epoch_in_any_state(state):
    transaction = transaction_in(state)

    transaction.require_reinit(reinit(transaction, ProducerFencedError, "fenced"))

    assert transaction.state is S.REINIT_REQUIRED
    with pytest.raises(ProducerFencedError, match="init_transactions"):
        transaction.check_may_send()


def test_an_unanswered_commit_has_its_own_state():
    transaction = transaction_in(S.COMMITTING)

    transaction.require_reinit(reinit(transaction, CommitOutcomeUnknownError, "not answered"))

    assert transaction.state is S.OUTCOME_UNKNOWN
    assert transaction.commit_is_in_doubt
    assert TRANSITIONS[S.OUTCOME_UNKNOWN] == (S.COMMITTING, S.INITIALIZING), "no other state may follow"


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_participant_can_write_to_the_partitions_it_was_given(is_v2):
    transaction = transaction_in(S.UNINITIALIZED)

    transaction.attach(
        TransactionHandle("tx", 4711, 3, is_v2), [TopicPartition("t", 0)], detects_repetitions=True
    )

    assert transaction.state is S.PARTICIPANT
    assert transaction.is_v2 is is_v2
    assert transaction.role.is_repetition(has_time=True, has_error=False)
    assert transaction.admit("t", 0)
    assert not transaction.admit("t", 1)


def test_an_exported_partition_belongs_to_another_producer():
    transaction = transaction_in(S.IN_TRANSACTION)
    assert not transaction.is_anothers("t", 0)

    transaction.exported[TopicPartition("t", 0)] = None

    assert transaction.is_anothers("t", 0)
    assert not transaction.is_anothers("t", 1)


def test_a_failed_participant_accepts_no_more_records():
    for fail, error in (
        (Transaction.require_abort, lambda transaction: abortable(transaction, KafkaError("first"))),
        (Transaction.require_reinit, lambda transaction: reinit(transaction, ProducerFencedError, "first")),
    ):
        transaction = transaction_in(S.PARTICIPANT)

        fail(transaction, error(transaction))

        assert transaction.state is S.FAILED_PARTICIPANT
        with pytest.raises(KafkaError, match="first"):
            transaction.check_may_send()


@pytest.mark.parametrize(
    "state", [S.REINIT_REQUIRED, S.OUTCOME_UNKNOWN, S.FAILED_PARTICIPANT], ids=lambda state: state.name
)
def test_the_first_cause_is_kept_if_a_new_epoch_is_already_needed(state):
    transaction = transaction_in(state)
    transaction.error = first = reinit(transaction, CommitOutcomeUnknownError, "first")

    transaction.require_reinit(reinit(transaction, ProducerFencedError, "second"))

    assert transaction.state is state
    assert transaction.error is first


def test_errors_contain_the_transactional_id_and_the_cause():
    transaction, cause = transaction_in(S.IN_TRANSACTION), KafkaError("first")

    assert abortable(transaction, cause).last_error is cause
    assert abortable(transaction, cause).transactional_id == "tx"
    assert reinit(transaction, ProducerFencedError, "fenced").transactional_id == "tx"


@pytest.mark.parametrize("state", [S.READY, S.ABORTING, S.UNINITIALIZED], ids=lambda state: state.name)
def test_a_late_failure_does_not_disturb_a_transaction_that_has_ended(state):
    transaction = transaction_in(state)

    transaction.require_abort(abortable(transaction, KafkaError("late")))

    assert transaction.state is state


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_transaction_is_uncommitted_until_a_commit_or_an_error(state):
    transaction = transaction_in(state)
    assert transaction.is_uncommitted is (state in (S.IN_TRANSACTION, S.ABORTING))

    transaction.error = abortable(transaction, KafkaError("first"))
    assert not transaction.is_uncommitted


@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_producer_is_stuck_in_states_that_an_abort_does_not_end(state):
    stuck = {S.OUTCOME_UNKNOWN, S.REINIT_REQUIRED, S.FAILED_PARTICIPANT}

    why = transaction_in(state).why_stuck

    assert why == (f"the producer 'tx' is {state.value}; {WAYS_OUT[state]}" if state in stuck else None)


def test_nothing_is_sent_while_a_transaction_is_taking_a_new_epoch():
    transaction = transaction_in(S.IN_TRANSACTION)
    transaction.changes_epoch = True

    assert not transaction.admit("t", 0)


def test_after_an_upgrade_v2_is_used_only_from_the_next_epoch_on():
    transaction = transaction_in(S.IN_TRANSACTION, is_v2=False)
    transaction.coordinator_hears()
    assert transaction.may_have_started
    for state in (S.COMMITTING, S.READY):
        transaction.move(state)

    transaction.begin(is_v2=True)
    assert not transaction.is_v2

    for state in (S.COMMITTING, S.READY):
        transaction.move(state)
    transaction.epoch_changed()
    transaction.begin(is_v2=True)
    assert transaction.is_v2
    transaction.coordinator_hears()
    assert not transaction.epoch_began_v1


def test_a_new_epoch_starts_all_sequences_anew():
    transaction = transaction_in(S.IN_TRANSACTION)
    transaction.writes_to("t", 0)
    transaction.numbered[TopicPartition("t", 1)] = None
    transaction.epoch_is_spent = True

    transaction.epoch_changed()

    assert (transaction.written, transaction.numbered) == ({}, {})
    assert not transaction.epoch_is_spent


def test_a_resumed_transaction_inherits_the_offsets_in_doubt():
    place, offset = TopicPartition("t", 0), OffsetAndMetadata(7)
    transaction = transaction_in(S.READY)

    transaction.resume(TransactionHandle("tx", 4711, 3, True, doubtful_offsets=(("g", place, offset),)))

    assert transaction.doubtful_offsets == {"g": {place: offset}}


@pytest.mark.parametrize("is_current", [True, False])
@pytest.mark.parametrize("state", S, ids=lambda state: state.name)
def test_a_rejected_record_prevents_the_commit_of_its_own_open_transaction(state, is_current):
    transaction = transaction_in(state)
    number = transaction.number if is_current else transaction.number + 1

    transaction.note_rejected(number, KafkaError("too large"))

    is_lost = is_current and state in (S.IN_TRANSACTION, S.RELEASING)
    assert transaction.state is (S.ABORT_REQUIRED if is_lost else state)
    if is_lost:
        with pytest.raises(TransactionAbortableError, match="can only be aborted: too large"):
            transaction.check_may_send()


@pytest.mark.parametrize(
    ("kind", "state"),
    [(CommitOutcomeUnknownError, S.OUTCOME_UNKNOWN), (ProducerFencedError, S.REINIT_REQUIRED)],
)
def test_the_error_for_a_new_epoch_tells_the_way_out_of_its_state(kind, state):
    error = reinit(transaction_in(S.COMMITTING), kind, "the reason")

    assert str(error).startswith(f"'tx': the reason; {WAYS_OUT[state]}")


def drawn() -> str:
    """Return the table as DESIGN.md shows it."""
    lines = [
        f"{state.name:16} -> {', '.join(to.name for to in TRANSITIONS[state])}"
        for state in S
        if TRANSITIONS[state]
    ]
    return "\n".join(lines)


@pytest.mark.promise("Transactions", "a transaction's states and their moves are a table")
def test_the_design_shows_the_table():
    design = (Path(__file__).parent.parent.parent / "DESIGN.md").read_text()

    assert f"```\n{drawn()}\n```" in design
