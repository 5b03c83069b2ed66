"""Planted bugs that random schedules do not find, with the reason and the test that finds each.

The others are in `planted.py` and `planted_connections.py`, each with the number of seeds within which the oracle
finds it. A bug in this list breaks a promise only in circumstances that the simulation never or rarely has. A mistake
that the producer repairs itself leaves nothing in the logs to judge. `unseen_planted.py` contains the bugs, and
`test_unseen.py` checks that the test named for a bug fails with it."""

from __future__ import annotations

from typing import NamedTuple


class Unseen(NamedTuple):
    """The reason why random schedules do not find a bug, and the test that finds it."""

    why: str
    module: str
    test: str


UNSEEN: dict[str, Unseen] = {
    "a batch gets new numbers in the same epoch when it is sent again": Unseen(
        "the broker rejects the gap, and the producer takes a new epoch: the records arrive once and in order",
        "sending/test_numbering",
        "test_a_batch_that_is_sent_again_keeps_its_numbers",
    ),
    "a batch that is sent again is unmuted while others are in flight": Unseen(
        "the broker rejects batches out of order, and the new epoch repairs this",
        "sending/test_numbering",
        "test_a_batch_is_sent_again_only_with_nothing_else_in_flight",
    ),
    "the epoch of a leader goes backwards": Unseen(
        "a former leader rejects the records, and the next metadata response corrects the epoch: only time is lost",
        "test_cluster",
        "test_leader_epochs_never_go_backwards",
    ),
    "the second part of a split batch is numbered one too far": Unseen(
        "the broker rejects the gap, and the producer takes a new epoch",
        "sending/test_sender_split",
        "test_a_batch_that_is_too_large_is_sent_in_parts",
    ),
    "five batches are in flight to a new leader": Unseen(
        "a new leader knows the producer from its replicas, and stores a later batch first only if its log was cut",
        "sending/test_sender_faults",
        "test_a_new_leader_has_one_batch_in_flight_until_its_first_acknowledgement",
    ),
    "a batch counts as the first although an earlier one waits for its next attempt": Unseen(
        "it requests a new epoch where it could wait, and no record is lost",
        "sending/test_produce_results_alone",
        "test_a_rejected_batch_waits_only_for_numbered_batches_before_it",
    ),
    "with v1 a transaction counts as begun only after the answer to AddPartitionsToTxn": Unseen(
        "the abort is left out only after an error in place of the answer; then no record was written, and the next "
        "transaction has the same epoch, so its end ends both",
        "transactions/test_outcomes",
        "test_with_v1_an_abort_also_ends_a_transaction_that_may_have_begun",
    ),
    "with v1 an end without an answer keeps its epoch": Unseen(
        "the late copy has to arrive in the few milliseconds of the next transaction",
        "transactions/test_outcomes",
        "test_with_v1_an_end_request_that_was_sent_twice_is_followed_by_a_new_epoch",
    ),
    "the numbers for a re-created topic begin at 0 in the same epoch": Unseen(
        "the new log must already contain these numbers of this epoch, from a batch that was sent by name",
        "sending/test_sender_topics",
        "test_a_re_created_topic_swallows_nothing",
    ),
    "an acknowledgement of an old epoch closes the gap of a new one": Unseen(
        "the answer to an expired batch has to come between the new epoch and its first gap",
        "records/test_idempotence",
        "test_an_acknowledgement_under_an_old_identity_does_not_close_a_gap",
    ),
    "a batch is dropped where a request is full": Unseen(
        "requests are rarely full, since the batches of a simulated run are small compared with max_request_size",
        "records/test_accumulator",
        "test_drain_stops_at_max_request_size_and_continues_where_it_stopped",
    ),
    "in gapless order a batch ends with its first records although others have joined it": Unseen(
        "all records of an open batch must time out, another must join it, and it must be closed before it is sent",
        "sending/test_sender_strict",
        "test_in_gapless_order_a_record_is_sent_though_one_before_it_timed_out",
    ),
    "REQUEST_TIMED_OUT or NOT_COORDINATOR for EndTxn counts as nothing done": Unseen(
        "the same EndTxn is sent again and answered; only one that is never answered can be reported wrongly",
        "transactions/test_outcomes",
        "test_a_commit_that_may_be_in_the_coordinators_log_is_in_doubt",
    ),
}
