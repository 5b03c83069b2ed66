"""Planted bugs that random schedules do not convict: why, and which test does.

The other planted bugs are in `planted.py`, each with the number of seeds within which the oracle convicts it. A bug of
this list breaks a promise only under circumstances that the simulation cannot have or hardly ever has; a mistake that
the producer repairs by itself leaves nothing in the logs to judge."""

from __future__ import annotations

from typing import NamedTuple


class Unseen(NamedTuple):
    """Why random schedules do not see a bug, and the test that does."""

    why: str
    module: str
    test: str


UNSEEN: dict[str, Unseen] = {
    "a batch gets new numbers in the same epoch when it is sent again": Unseen(
        "the broker refuses the gap, and the producer takes a new epoch: the records arrive once and in order",
        "sending/test_sender",
        "test_a_retriable_error_with_five_in_flight_loses_repeats_and_reorders_nothing",
    ),
    "a batch that is sent again is unmuted while others are in flight": Unseen(
        "the broker refuses what comes out of order, and the new epoch repairs it",
        "sending/test_sender",
        "test_compressed_batches_survive_faults_in_order",
    ),
    "the epoch of a leader goes backwards": Unseen(
        "a former leader refuses the records, and the next metadata correct it: it costs time only",
        "test_cluster",
        "test_leader_epochs_never_go_backwards",
    ),
    "the second part of a split batch is numbered one too far": Unseen(
        "the broker refuses the gap, and the producer takes a new epoch",
        "sending/test_sender_split",
        "test_a_batch_that_is_too_large_is_sent_in_parts",
    ),
    "five batches are in flight to a new leader": Unseen(
        "a new leader has the producer's state from its replicas: a later batch gets in first only if its log is cut",
        "sending/test_sender_faults",
        "test_a_new_leader_has_one_batch_in_flight_until_its_first_acknowledgement",
    ),
    "a batch counts as the first although an earlier one waits for its next attempt": Unseen(
        "it asks for a new epoch where waiting would do, and no record is lost by that",
        "protocol/test_error_table_walk",
        "test_the_expected_row_is_in_the_table_and_is_observed",
    ),
    "with v1 a transaction counts as begun only after the answer to AddPartitionsToTxn": Unseen(
        "the abort is left out, and the next transaction has the same epoch: its own end ends both",
        "campaigns/test_fault_catalogue",
        "test_a_scenario_ends_as_it_should_and_every_promise_is_kept",
    ),
    "with v1 an end without an answer keeps its epoch": Unseen(
        "the late copy has to arrive in the few milliseconds between the begin and the end of the next transaction",
        "transactions/test_outcomes",
        "test_with_v1_an_end_request_that_was_sent_twice_is_followed_by_a_new_epoch",
    ),
    "the numbers for a re-created topic begin at 0 in the same epoch": Unseen(
        "the new log must have these numbers of this epoch already, from a batch that was sent by name",
        "sending/test_sender_topics",
        "test_a_re_created_topic_swallows_nothing",
    ),
    "an acknowledgement of an old epoch closes the gap of a new one": Unseen(
        "the answer to an expired batch has to come between the new epoch and its first gap",
        "records/test_idempotence",
        "test_results_under_an_old_identity_change_nothing",
    ),
    "a batch is dropped where a request is full": Unseen(
        "requests are seldom full, since the batches of a simulated run are small beside max_request_size",
        "records/test_accumulator",
        "test_drain_stops_at_max_request_size_and_continues_where_it_stopped",
    ),
    "REQUEST_TIMED_OUT or NOT_COORDINATOR for EndTxn counts as nothing done": Unseen(
        "the same EndTxn is sent again and answered: only one that is never answered has an outcome to get wrong",
        "transactions/test_outcomes",
        "test_a_commit_that_may_be_in_the_coordinators_log_is_in_doubt",
    ),
}
