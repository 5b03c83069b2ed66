"""The table of Produce errors: a row for every code, and NOT_PERSISTED only where a broker can't have appended."""

from __future__ import annotations

import pytest

from aioproducer.outcomes import INIT_PRODUCER_ID_RETRIABLE, PRODUCE, UNKNOWN_CODE, Action, Row, of_produce
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.types import Outcome

# A leader with acks=all appends, waits for its followers, and may answer one of these afterwards
# (kafka.server.DelayedProduce); a client can't tell whether that was before or after the append.
AFTER_AN_APPEND = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
}

# Raised before the append: validation, authorisation, the check of the ISR, the check of the sequence.
BEFORE_AN_APPEND = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}

# Java's InvalidMetadataException and its subclasses, as far as they answer a Produce.
ASK_FOR_METADATA = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_every_error_code_has_a_row(code):
    row = of_produce(code)

    assert isinstance(row, Row)
    assert isinstance(row.action, Action)
    assert isinstance(row.outcome, Outcome)
    assert of_produce(int(code)) == row


@pytest.mark.parametrize("code", sorted(AFTER_AN_APPEND), ids=lambda code: code.name)
def test_code_that_may_come_after_an_append_leaves_the_outcome_unknown(code):
    assert of_produce(code).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("code", sorted(BEFORE_AN_APPEND), ids=lambda code: code.name)
def test_code_that_comes_before_the_append_says_not_persisted(code):
    assert of_produce(code).outcome is Outcome.NOT_PERSISTED


def test_no_other_code_of_the_table_is_unknown():
    unknown = {code for code, row in PRODUCE.items() if row.outcome is Outcome.UNKNOWN}

    assert unknown == AFTER_AN_APPEND - {ErrorCode.UNKNOWN_SERVER_ERROR}


@pytest.mark.parametrize("code", [-1, -2, 9999, 32_767, -32_768, max(ErrorCode) + 1])
def test_code_that_nobody_knows_fails_with_an_unknown_outcome(code):
    assert of_produce(code) == UNKNOWN_CODE == Row(Action.FAIL, Outcome.UNKNOWN)


def test_code_that_is_not_in_the_table_fails_with_an_unknown_outcome():
    for code in set(ErrorCode) - set(PRODUCE):
        assert of_produce(code) == UNKNOWN_CODE


def test_only_an_answer_without_error_and_a_duplicate_succeed():
    succeed = {code for code in ErrorCode if of_produce(code).action is Action.SUCCEED}

    assert succeed == {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}


@pytest.mark.parametrize("code", sorted(ASK_FOR_METADATA), ids=lambda code: code.name)
def test_code_that_says_metadata_is_old_is_tried_again_after_a_refresh(code):
    assert of_produce(code).action is Action.REFRESH


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ],
    ids=lambda code: code.name,
)
def test_code_that_passes_is_tried_again(code):
    assert of_produce(code).action is Action.RETRY


def test_refused_sequence_or_epoch_is_repaired():
    repaired = {code for code in ErrorCode if of_produce(code).action is Action.REPAIR}

    assert repaired == {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }


def test_code_that_will_not_pass_is_not_tried_again():
    passing = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    lasting = BEFORE_AN_APPEND - ASK_FOR_METADATA - passing
    lasting |= {ErrorCode.PRODUCER_FENCED, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TRANSACTION_ABORTABLE}

    assert {code for code in lasting if of_produce(code).action is not Action.FAIL} == set()


def test_producer_id_is_asked_for_again_where_the_coordinator_was_not_ready():
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in INIT_PRODUCER_ID_RETRIABLE
    assert ErrorCode.CONCURRENT_TRANSACTIONS in INIT_PRODUCER_ID_RETRIABLE
    assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED not in INIT_PRODUCER_ID_RETRIABLE
    assert ErrorCode.NONE not in INIT_PRODUCER_ID_RETRIABLE
