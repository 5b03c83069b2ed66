"""The error table: it is complete, correct about records that may be persisted, and the only code that decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioproducer import errors
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.outcomes import (
    SENDS_AGAIN,
    TABLE,
    TOPIC_ERRORS,
    UNKNOWN_CODES,
    Action,
    Condition,
    Failure,
    Moment,
    Row,
    advice,
    decide,
    decide_failure,
    decide_moment,
    depends_on,
    doubts_the_log,
    failure_of,
    reinit_error,
)
from aioproducer.types import Outcome
from tests.support.error_table.decisions import compiled_decisions, decisions

PACKAGE = Path(__file__).parent.parent.parent / "aioproducer"
NO, MAYBE = Outcome.NOT_PERSISTED, Outcome.UNKNOWN
PRODUCE = ApiKey.PRODUCE

# With acks=all, a leader appends, waits for its followers, and may return one of these codes afterwards
# (kafka.server.DelayedProduce). A client can't know whether it was raised before or after the append.
AFTER_AN_APPEND = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
}

# Java's InvalidMetadataException and its subclasses, as far as they occur in Produce responses.
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

IN_TRANSACTION = {Condition.TRANSACTION, Condition.V2}


def rows_of(api):
    """Return all rows of an API, including those of unknown codes."""
    rules = [
        rule for key, found in TABLE.items() if isinstance(key, tuple) and key[0] is api for rule in found
    ]
    return [rule.row for rule in (*rules, *UNKNOWN_CODES[api])]


@pytest.mark.promise(
    "Error table", "each code of each API and each failure has a row in the table, under all conditions"
)
@pytest.mark.parametrize("api", UNKNOWN_CODES, ids=lambda api: api.name)
def test_each_code_of_each_api_has_a_row_under_all_conditions(api):
    for code in (*ErrorCode, -2, 9999, 32_767, -32_768):
        for conditions in ((), set(Condition), *({condition} for condition in Condition)):
            row = decide(api, int(code), conditions)
            assert isinstance(row, Row), code
            assert isinstance(row.action, Action), code
            assert isinstance(row.outcome, Outcome), code


@pytest.mark.promise(
    "Error table", "each code of each API and each failure has a row in the table, under all conditions"
)
@pytest.mark.parametrize("failure", Failure)
def test_each_failure_has_a_row_under_all_conditions(failure):
    for conditions in ((), set(Condition), {Condition.ACKS_0}):
        assert isinstance(decide_failure(failure, conditions), Row)


@pytest.mark.parametrize("moment", Moment)
def test_each_moment_has_a_row_under_all_conditions(moment):
    for conditions in ((), set(Condition), *({condition} for condition in Condition)):
        assert isinstance(decide_moment(moment, conditions), Row)


def test_only_endless_retries_keep_a_batch_after_its_delivery_timeout():
    endless = {Condition.ENDLESS}
    assert decide_moment(Moment.EXPIRED) == Row(Action.FAIL, NO)
    assert decide_moment(Moment.EXPIRED, {Condition.IN_FLIGHT}) == Row(Action.FAIL, MAYBE)
    assert decide_moment(Moment.EXPIRED, {Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide_moment(Moment.EXPIRED, endless) == Row(Action.FAIL, NO), "nothing is in doubt"
    assert decide_moment(Moment.EXPIRED, {Condition.IN_FLIGHT, *endless}) == Row(Action.KEEP, MAYBE)
    assert decide_moment(Moment.EXPIRED, {Condition.IN_DOUBT, *endless}) == Row(Action.KEEP, MAYBE)


def test_in_gapless_order_a_batch_after_a_failed_one_fails_with_its_response_at_the_latest():
    assert decide_moment(Moment.BEHIND) == Row(Action.FAIL, NO)
    assert decide_moment(Moment.BEHIND, {Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide_moment(Moment.BEHIND, {Condition.IN_FLIGHT}) == Row(Action.KEEP, MAYBE)
    for code in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP):
        assert decide(PRODUCE, code, {Condition.RECORD_ERRORS, Condition.GAPLESS}) == Row(Action.FAIL, NO)


@pytest.mark.promise(
    "Error table", "each code of each API and each failure has a row in the table, under all conditions"
)
def test_each_entry_ends_with_its_only_unconditional_rule():
    for key, rules in [*TABLE.items(), *UNKNOWN_CODES.items()]:
        assert not rules[-1].when, key
        assert all(rule.when for rule in rules[:-1]), f"{key}: an unconditional rule hides those after it"
        for index, rule in enumerate(rules):
            hidden = [earlier for earlier in rules[:index] if earlier.when < rule.when]
            assert not hidden, f"{key}: {rule} is never reached"


@pytest.mark.parametrize(
    ("code", "otherwise"),
    [(ErrorCode.NONE, Action.SUCCEED), (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, Action.DUPLICATE)],
)
def test_a_success_that_may_be_that_of_another_participant_does_not_count(code, otherwise):
    assert decide(PRODUCE, code, {Condition.REPETITION, *IN_TRANSACTION}) == Row(Action.ABORT, MAYBE)
    assert decide(PRODUCE, code, IN_TRANSACTION).action is otherwise


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        TABLE[PRODUCE, 0] = ()  # type: ignore[index]  # that is the point


def test_conditions_are_evaluated_once_and_only_if_the_row_depends_on_them():
    asked = []

    def conditions():
        asked.append("asked")
        return {Condition.COMMIT}

    assert decide(ApiKey.END_TXN, ErrorCode.NONE, conditions).action is Action.SUCCEED
    assert asked == []
    assert decide(ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, conditions) == Row(Action.REINIT, NO)
    assert asked == ["asked"]


# ---------------------------------------------------------------------------------------- all codes of all APIs

E = ErrorCode

# The table by action, without conditions. ELSE contains the rows of all other codes.
ROWS = {
    ApiKey.PRODUCE: {
        Row(Action.DUPLICATE, NO): {E.DUPLICATE_SEQUENCE_NUMBER},
        Row(Action.RENEGOTIATE, NO): {E.UNSUPPORTED_VERSION},
        Row(Action.RETRY, NO): {
            E.CORRUPT_MESSAGE,
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.COORDINATOR_NOT_AVAILABLE,
            E.NOT_COORDINATOR,
            E.NOT_ENOUGH_REPLICAS,
            E.CONCURRENT_TRANSACTIONS,
            E.THROTTLING_QUOTA_EXCEEDED,
            E.UNKNOWN_LEADER_EPOCH,
        },
        Row(Action.RETRY, MAYBE): {E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND},
        Row(Action.REFRESH, NO): (ASK_FOR_METADATA | {E.BROKER_NOT_AVAILABLE}) - AFTER_AN_APPEND,
        Row(Action.REFRESH, MAYBE): ASK_FOR_METADATA & AFTER_AN_APPEND,
        Row(Action.RENUMBER, NO): {
            E.OUT_OF_ORDER_SEQUENCE_NUMBER,
            E.UNKNOWN_PRODUCER_ID,
            E.INVALID_PRODUCER_ID_MAPPING,
        },
        Row(Action.NEW_PRODUCER_ID, NO): {E.INVALID_PRODUCER_EPOCH},
        Row(Action.FAIL, NO): {
            E.MESSAGE_TOO_LARGE,
            E.RECORD_LIST_TOO_LARGE,
            E.INVALID_RECORD,
            E.INVALID_TIMESTAMP,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
            E.PRODUCER_FENCED,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            E.INVALID_TOPIC_EXCEPTION,
            E.INVALID_REQUIRED_ACKS,
            E.TOPIC_AUTHORIZATION_FAILED,
            E.CLUSTER_AUTHORIZATION_FAILED,
            E.INVALID_REQUEST,
            E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            E.POLICY_VIOLATION,
            E.UNSUPPORTED_COMPRESSION_TYPE,
        },
    },
    ApiKey.METADATA: {
        Row(Action.FAIL, NO): {E.INVALID_TOPIC_EXCEPTION, E.TOPIC_AUTHORIZATION_FAILED},
        Row(Action.REBOOTSTRAP, NO): {E.REBOOTSTRAP_REQUIRED},
    },
    ApiKey.API_VERSIONS: {Row(Action.DOWNGRADE, NO): {E.UNSUPPORTED_VERSION}},
    ApiKey.SASL_HANDSHAKE: {
        Row(Action.OTHER_MECHANISM, NO): {E.UNSUPPORTED_SASL_MECHANISM},
        Row(Action.NO_SASL, NO): {E.ILLEGAL_SASL_STATE},
    },
    ApiKey.SASL_AUTHENTICATE: {
        Row(Action.FAIL, NO): {E.SASL_AUTHENTICATION_FAILED, E.ILLEGAL_SASL_STATE},
    },
    ApiKey.FIND_COORDINATOR: {
        Row(Action.RETRY, NO): {
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.COORDINATOR_NOT_AVAILABLE,
            E.REQUEST_TIMED_OUT,
            E.UNKNOWN_SERVER_ERROR,
            E.BROKER_NOT_AVAILABLE,
        },
        Row(Action.REINIT, NO): {E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED},
    },
    ApiKey.INIT_PRODUCER_ID: {
        Row(Action.RETRY, NO): {
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.CONCURRENT_TRANSACTIONS,
            E.REQUEST_TIMED_OUT,
            E.NETWORK_EXCEPTION,
            E.UNKNOWN_SERVER_ERROR,
        },
        Row(Action.COORDINATOR, NO): {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE},
        Row(Action.REINIT, NO): {
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.TRANSACTION_ABORTABLE,
        },
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        Row(Action.RETRY, NO): {
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.CONCURRENT_TRANSACTIONS,
            E.REQUEST_TIMED_OUT,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.OPERATION_NOT_ATTEMPTED,
        },
        Row(Action.COORDINATOR, NO): {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE},
        Row(Action.REINIT, NO): {
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        },
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {
        Row(Action.RETRY, NO): {
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.CONCURRENT_TRANSACTIONS,
            E.REQUEST_TIMED_OUT,
        },
        Row(Action.COORDINATOR, NO): {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE},
        Row(Action.REINIT, NO): {
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        },
    },
    ApiKey.OFFSET_FETCH: {
        Row(Action.RETRY, NO): {
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.REQUEST_TIMED_OUT,
            E.UNSTABLE_OFFSET_COMMIT,
        },
        Row(Action.COORDINATOR, NO): {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE},
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        Row(Action.RETRY, NO): {
            E.COORDINATOR_LOAD_IN_PROGRESS,
            E.CONCURRENT_TRANSACTIONS,
            E.REQUEST_TIMED_OUT,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.UNSTABLE_OFFSET_COMMIT,
        },
        Row(Action.COORDINATOR, NO): {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE},
        Row(Action.REINIT, NO): {
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        },
    },
    ApiKey.END_TXN: {
        Row(Action.RETRY, NO): {E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS},
        Row(Action.RETRY, MAYBE): {E.REQUEST_TIMED_OUT},
        Row(Action.COORDINATOR, MAYBE): {E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE},
    },
    ApiKey.DESCRIBE_PRODUCERS: {
        Row(Action.RETRY, NO): {
            E.NOT_LEADER_OR_FOLLOWER,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.KAFKA_STORAGE_ERROR,
            E.REQUEST_TIMED_OUT,
        },
    },
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: {
        Row(Action.FAIL, NO): {E.INVALID_REQUEST, E.INVALID_RECORD, E.UNSUPPORTED_VERSION},
    },
    ApiKey.PUSH_TELEMETRY: {
        Row(Action.FAIL, NO): {E.INVALID_REQUEST, E.INVALID_RECORD, E.UNSUPPORTED_VERSION},
        Row(Action.SUBSCRIBE, NO): {E.UNKNOWN_SUBSCRIPTION_ID, E.UNSUPPORTED_COMPRESSION_TYPE},
        Row(Action.SUBSCRIBE_LATER, NO): {E.TELEMETRY_TOO_LARGE, E.THROTTLING_QUOTA_EXCEEDED},
    },
}
ELSE = {
    ApiKey.PRODUCE: Row(Action.FAIL, MAYBE),
    ApiKey.METADATA: Row(Action.RETRY, NO),
    ApiKey.API_VERSIONS: Row(Action.CLOSE, NO),
    ApiKey.SASL_HANDSHAKE: Row(Action.CLOSE, NO),
    ApiKey.SASL_AUTHENTICATE: Row(Action.CLOSE, NO),
    ApiKey.FIND_COORDINATOR: Row(Action.ABORT, NO),
    ApiKey.INIT_PRODUCER_ID: Row(Action.REINIT, NO),
    ApiKey.ADD_PARTITIONS_TO_TXN: Row(Action.ABORT, NO),
    ApiKey.ADD_OFFSETS_TO_TXN: Row(Action.ABORT, NO),
    ApiKey.OFFSET_FETCH: Row(Action.FAIL, NO),
    ApiKey.TXN_OFFSET_COMMIT: Row(Action.ABORT, NO),
    ApiKey.END_TXN: Row(Action.REINIT, NO),
    ApiKey.DESCRIBE_PRODUCERS: Row(Action.FAIL, NO),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Row(Action.RETRY, NO),
    ApiKey.PUSH_TELEMETRY: Row(Action.RETRY, NO),
}


def rows_by_code(api, rows):
    expected = dict.fromkeys(ErrorCode, ELSE[api]) | {E.NONE: Row(Action.SUCCEED, NO)}
    return expected | {code: row for row, codes in rows.items() for code in codes}


def test_each_api_has_a_rule_for_unknown_codes():
    assert {api: decide(api, 9999) for api in ROWS} == ELSE
    assert set(UNKNOWN_CODES) == set(ROWS)


@pytest.mark.parametrize("api", ROWS, ids=lambda api: api.name)
def test_each_code_leads_to_its_action_without_conditions(api):
    assert {code: decide(api, code) for code in ErrorCode} == rows_by_code(api, ROWS[api])


@pytest.mark.parametrize("version", [Condition.V1, Condition.V2], ids=lambda version: version.name)
def test_in_a_transaction_record_errors_abort_it_and_fencing_errors_need_a_new_epoch(version):
    refused = {
        code
        for action in (Action.FAIL, Action.RENUMBER, Action.NEW_PRODUCER_ID)
        for code in ROWS[PRODUCE][Row(action, NO)]
    }
    fenced = {E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    if version is Condition.V1:
        fenced |= {E.INVALID_PRODUCER_EPOCH}
    one_record_too_large = {E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE}

    rows = {code: decide(PRODUCE, code, {Condition.TRANSACTION, version}) for code in ErrorCode}

    expected = {
        code: Row(Action.ABORT, MAYBE) if row == ELSE[PRODUCE] else row
        for code, row in rows_by_code(PRODUCE, ROWS[PRODUCE]).items()
    }
    expected |= dict.fromkeys(refused - one_record_too_large, Row(Action.ABORT, NO))
    expected |= dict.fromkeys(fenced, Row(Action.REINIT, NO))
    expected[E.CONCURRENT_TRANSACTIONS] = Row(Action.RETRY_SOON, NO)
    assert rows == expected


# ------------------------------------------------------------------------------------------------------ Produce


@pytest.mark.promise("As a whole", "each failure says correctly whether its record may be in the log")
@pytest.mark.parametrize("code", sorted(AFTER_AN_APPEND), ids=lambda code: code.name)
def test_code_that_may_come_after_an_append_leaves_the_outcome_unknown(code):
    assert decide(PRODUCE, code).outcome is MAYBE
    assert decide(PRODUCE, code, IN_TRANSACTION).outcome is MAYBE


@pytest.mark.promise("As a whole", "each failure says correctly whether its record may be in the log")
def test_no_other_code_of_produce_leaves_the_outcome_unknown_by_itself():
    unknown = {
        code for code in ErrorCode if (PRODUCE, code) in TABLE and decide(PRODUCE, code).outcome is MAYBE
    }

    assert unknown == AFTER_AN_APPEND - {ErrorCode.UNKNOWN_SERVER_ERROR}


@pytest.mark.parametrize("code", [-1, -2, 9999, 32_767, -32_768, max(ErrorCode) + 1])
def test_unknown_code_fails_with_an_unknown_outcome(code):
    assert decide(PRODUCE, code) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code, IN_TRANSACTION) == Row(Action.ABORT, MAYBE)


@pytest.mark.promise("Accumulator, sender, connections", "duplicates count as success")
def test_only_a_response_without_error_and_a_duplicate_succeed():
    succeed = {code: decide(PRODUCE, code).action for code in ErrorCode}

    assert [code for code, action in succeed.items() if action is Action.SUCCEED] == [ErrorCode.NONE]
    assert [code for code, action in succeed.items() if action is Action.DUPLICATE] == [
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    ]


@pytest.mark.parametrize("code", sorted(ASK_FOR_METADATA), ids=lambda code: code.name)
def test_code_that_indicates_old_metadata_is_retried_after_a_refresh(code):
    assert decide(PRODUCE, code).action is Action.REFRESH


LOST = [
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
]


@pytest.mark.parametrize("code", LOST, ids=lambda code: code.name)
def test_a_refused_sequence_is_repaired_by_a_new_epoch_unless_the_batch_is_in_doubt(code):
    is_epoch = code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert decide(PRODUCE, code, {Condition.STALE}) == Row(Action.RENUMBER, NO)
    assert decide(PRODUCE, code).action is (Action.NEW_PRODUCER_ID if is_epoch else Action.RENUMBER)
    assert decide(PRODUCE, code, {Condition.NOT_FIRST}) == Row(Action.HOLD, NO)
    assert decide(PRODUCE, code, {Condition.NOT_FIRST, Condition.IN_DOUBT}) == Row(Action.HOLD, NO)
    assert decide(PRODUCE, code, {Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code, {Condition.NOT_IDEMPOTENT}) == Row(Action.FAIL, NO)


@pytest.mark.parametrize("code", LOST, ids=lambda code: code.name)
def test_in_a_transaction_no_batch_ever_gets_other_numbers(code):
    for condition in Condition:
        for version in (Condition.V1, Condition.V2):
            row = decide(PRODUCE, code, {Condition.TRANSACTION, version, condition})
            assert row.action not in (Action.RENUMBER, Action.NEW_PRODUCER_ID, Action.RESEND_INNOCENT)


def test_a_fenced_epoch_requires_an_abort_with_v2_and_a_new_start_with_v1():
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    assert decide(PRODUCE, code, {Condition.TRANSACTION, Condition.V2}).action is Action.ABORT
    assert decide(PRODUCE, code, {Condition.TRANSACTION, Condition.V1}).action is Action.REINIT
    assert decide(PRODUCE, code, {Condition.V1}).action is Action.NEW_PRODUCER_ID


def test_a_corrupt_batch_is_sent_three_times_unless_it_was_damaged_here():
    code = ErrorCode.CORRUPT_MESSAGE
    for others in (set(), {Condition.IN_DOUBT}, {Condition.NOT_FIRST}, IN_TRANSACTION):
        assert decide(PRODUCE, code, others) == Row(Action.RETRY, NO)
        assert decide(PRODUCE, code, {Condition.THIRD_TIME, *others}) == Row(Action.FAIL, NO)
        assert decide(PRODUCE, code, {Condition.DAMAGED, *others}) == Row(Action.DAMAGED, NO)
        assert decide(PRODUCE, code, {Condition.DAMAGED, Condition.THIRD_TIME}) == Row(Action.DAMAGED, NO)


def test_a_version_that_the_broker_does_not_know_is_negotiated_again_once():
    code = ErrorCode.UNSUPPORTED_VERSION
    assert decide(PRODUCE, code, IN_TRANSACTION) == Row(Action.RENEGOTIATE, NO)
    assert decide(PRODUCE, code, {Condition.SECOND_TIME}) == Row(Action.FAIL, NO)
    assert decide(PRODUCE, code, {Condition.SECOND_TIME, *IN_TRANSACTION}) == Row(Action.ABORT, NO)


def test_the_table_says_which_codes_need_an_expensive_condition():
    needed = {code for code in ErrorCode if depends_on(PRODUCE, code, Condition.DAMAGED)}

    assert needed == {ErrorCode.CORRUPT_MESSAGE}
    assert not depends_on(PRODUCE, 9999, Condition.DAMAGED)


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_a_batch_that_is_too_large_is_split_unless_it_is_in_doubt_or_one_record(code):
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS}) == Row(Action.SPLIT, NO)
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS, *IN_TRANSACTION}) == Row(Action.SPLIT, NO)
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS, Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code) == Row(Action.FAIL, NO)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP])
def test_valid_records_are_sent_again_if_the_broker_named_the_invalid_ones(code):
    named = {Condition.RECORD_ERRORS, Condition.SEVERAL_RECORDS}
    assert decide(PRODUCE, code, named) == Row(Action.RESEND_INNOCENT, NO)
    assert decide(PRODUCE, code, named | {Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code, named | IN_TRANSACTION) == Row(Action.ABORT, NO)
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS}) == Row(Action.FAIL, NO)


def test_not_enough_replicas_is_distinguished_from_a_failed_verification():
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    assert decide(PRODUCE, code, IN_TRANSACTION) == Row(Action.RETRY, NO)
    assert decide(PRODUCE, code, {*IN_TRANSACTION, Condition.VERIFICATION}) == Row(Action.RETRY_SOON, NO)
    assert decide(PRODUCE, code, {Condition.VERIFICATION}) == Row(Action.RETRY, NO)
    for other in set(ErrorCode) - {code}:
        assert decide(PRODUCE, other, {*IN_TRANSACTION, Condition.VERIFICATION}) == decide(
            PRODUCE, other, IN_TRANSACTION
        )


# ---------------------------------------------------------------------------------------------------- failures


def test_only_unwritten_records_are_certainly_not_persisted():
    not_persisted = {failure for failure in Failure if decide_failure(failure).outcome is NO}

    assert not_persisted == {Failure.NOT_WRITTEN, Failure.NO_COMMON_VERSION}


def test_metadata_is_refreshed_after_a_failure_unless_there_is_no_common_version():
    fail = {failure for failure in Failure if decide_failure(failure).action is Action.FAIL}

    assert fail == {Failure.NO_COMMON_VERSION}
    assert all(decide_failure(failure).action is Action.REFRESH for failure in set(Failure) - fail)


CONNECTION_LOST = (
    Failure.CUT,
    Failure.TIMED_OUT,
    Failure.WRONG_CORRELATION_ID,
    Failure.UNDECODABLE,
)
"""The failures of a request without a response."""


def test_with_acks_0_written_records_are_not_sent_again():
    for failure in CONNECTION_LOST:
        assert decide_failure(failure, {Condition.ACKS_0}) == Row(Action.FAIL, MAYBE)
    assert decide_failure(Failure.NOT_WRITTEN, {Condition.ACKS_0}).action is Action.REFRESH


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (errors.BrokerConnectionError("x", written=False), Failure.NOT_WRITTEN),
        (errors.BrokerConnectionError("x", written=True), Failure.CUT),
        (errors.RequestTimedOutError("x", written=True), Failure.TIMED_OUT),
        (errors.RequestTimedOutError("x", written=False), Failure.NOT_WRITTEN),
        (errors.CorrelationError("x"), Failure.WRONG_CORRELATION_ID),
        (errors.MissingPartitionError("x"), Failure.MISSING_PARTITION),
        (errors.ForeignPartitionError("x"), Failure.FOREIGN_PARTITION),
        (errors.ProtocolError("x"), Failure.UNDECODABLE),
        (errors.ProtocolError("x", written=False), Failure.NOT_WRITTEN),
        (errors.AuthenticationError("x"), Failure.NOT_WRITTEN),
        (errors.UnsupportedVersionError("x"), Failure.NO_COMMON_VERSION),
        (RuntimeError("a bug"), Failure.CUT),
    ],
    ids=repr,
)
def test_each_error_of_a_connection_maps_to_one_failure(error, failure):
    assert failure_of(error) is failure


# ------------------------------------------------------------------------------------------------ transactions


@pytest.mark.promise("Transactions", "a commit that is not answered has an unknown outcome")
@pytest.mark.parametrize("version", [Condition.V1, Condition.V2])
def test_a_commit_is_called_unknown_only_if_an_earlier_attempt_was_not_answered(version):
    commit = {version, Condition.COMMIT}
    for code in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    ):
        assert decide(ApiKey.END_TXN, code, commit) == Row(Action.REINIT, NO)
        assert decide(ApiKey.END_TXN, code, {*commit, Condition.UNANSWERED}) == Row(Action.REINIT, MAYBE)
        assert decide(ApiKey.END_TXN, code, {version, Condition.UNANSWERED}) == Row(Action.REINIT, NO), (
            "an abort"
        )


def test_a_commit_in_the_wrong_state_has_timed_out_with_v2_and_is_unknown_with_v1():
    code = ErrorCode.INVALID_TXN_STATE
    unanswered = {Condition.COMMIT, Condition.UNANSWERED}
    assert decide(ApiKey.END_TXN, code, {Condition.V2, *unanswered}) == Row(Action.ABORT, NO)
    assert decide(ApiKey.END_TXN, code, {Condition.V1, *unanswered}) == Row(Action.REINIT, MAYBE)
    assert decide(ApiKey.END_TXN, code, {Condition.V2, Condition.COMMIT}) == Row(Action.ABORT, NO)
    assert decide(ApiKey.END_TXN, code, {Condition.V1, Condition.COMMIT}) == Row(Action.REINIT, NO)


def test_a_commit_that_must_be_an_abort_becomes_one_and_an_abort_ends_with_a_new_epoch():
    code = ErrorCode.TRANSACTION_ABORTABLE
    assert decide(ApiKey.END_TXN, code, {Condition.V2, Condition.COMMIT}) == Row(Action.ABORT, NO)
    assert decide(ApiKey.END_TXN, code, {Condition.V2}) == Row(Action.REINIT, NO)


def test_an_abort_in_the_wrong_state_has_nothing_to_abort_with_v1_and_is_fenced_with_v2():
    code = ErrorCode.INVALID_TXN_STATE
    for unanswered in ((), (Condition.UNANSWERED,)):
        assert decide(ApiKey.END_TXN, code, {Condition.V1, *unanswered}) == Row(Action.SUCCEED, NO)
        assert decide(ApiKey.END_TXN, code, {Condition.V2, *unanswered}) == Row(Action.REINIT, NO)


def test_offsets_under_an_old_epoch_can_be_aborted_only_with_v2():
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    assert decide(ApiKey.TXN_OFFSET_COMMIT, code, {Condition.V2}) == Row(Action.ABORT, NO)
    assert decide(ApiKey.TXN_OFFSET_COMMIT, code, {Condition.V1}) == Row(Action.REINIT, NO)
    for version in (Condition.V1, Condition.V2):
        assert decide(ApiKey.TXN_OFFSET_COMMIT, E.PRODUCER_FENCED, {version}) == Row(Action.REINIT, NO)


def test_an_unknown_code_for_a_commit_leaves_its_outcome_unknown():
    assert decide(ApiKey.END_TXN, -1, {Condition.COMMIT}) == Row(Action.REINIT, MAYBE)
    assert decide(ApiKey.END_TXN, 9999, {Condition.COMMIT}) == Row(Action.REINIT, MAYBE)
    assert decide(ApiKey.END_TXN, 9999) == Row(Action.REINIT, NO)


@pytest.mark.parametrize("api", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN])
def test_a_moved_coordinator_is_found_again_and_concurrent_transactions_are_retried(api):
    assert decide(api, ErrorCode.NOT_COORDINATOR).action is Action.COORDINATOR
    assert decide(api, ErrorCode.COORDINATOR_NOT_AVAILABLE).action is Action.COORDINATOR
    assert decide(api, ErrorCode.CONCURRENT_TRANSACTIONS).action is Action.RETRY
    assert decide(api, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS).action is Action.RETRY


def test_transactional_apis_use_only_actions_that_the_coordinator_implements():
    known = {Action.SUCCEED, Action.RETRY, Action.COORDINATOR, Action.ABORT, Action.REINIT, Action.FAIL}
    for api in UNKNOWN_CODES:
        if api not in (PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.PUSH_TELEMETRY):
            sasl = {Action.CLOSE, Action.OTHER_MECHANISM, Action.NO_SASL}
            assert {row.action for row in rows_of(api)} <= known | sasl, api


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (E.CLUSTER_AUTHORIZATION_FAILED, "IDEMPOTENT_WRITE on the cluster"),
        (E.TOPIC_AUTHORIZATION_FAILED, "WRITE on the topic"),
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "WRITE on the transactional id"),
        (E.GROUP_AUTHORIZATION_FAILED, "READ on the group"),
        (E.INVALID_TRANSACTION_TIMEOUT, "transaction_timeout_ms"),
        (E.MESSAGE_TOO_LARGE, "max.message.bytes"),
        (E.UNSUPPORTED_COMPRESSION_TYPE, "compression_type"),
    ],
    ids=lambda value: value.name if isinstance(value, E) else "",
)
def test_advice_ends_a_sentence_and_names_what_to_change(code, words):
    assert advice(code).startswith("; ")
    assert words in advice(code)


def test_some_codes_have_no_advice():
    assert advice(ErrorCode.CORRUPT_MESSAGE) == ""


def test_a_topic_that_metadata_rejects_permanently_has_its_own_error():
    assert TOPIC_ERRORS == {
        E.INVALID_TOPIC_EXCEPTION: errors.InvalidTopicError,
        E.TOPIC_AUTHORIZATION_FAILED: errors.TopicAuthorizationError,
    }


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_a_producer_that_another_one_has_replaced_gets_producer_fenced_error(code):
    is_fenced = code in (E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED)

    assert reinit_error(code) is (errors.ProducerFencedError if is_fenced else errors.TransactionReinitError)


def test_records_are_sent_again_only_after_these_actions():
    assert set(Action) - SENDS_AGAIN == {
        Action.SUCCEED,
        Action.DUPLICATE,
        Action.KEEP,
        Action.DAMAGED,
        Action.FAIL,
        Action.ABORT,
        Action.REINIT,
        Action.COORDINATOR,
        Action.REBOOTSTRAP,
        Action.CLOSE,
        Action.DOWNGRADE,
        Action.OTHER_MECHANISM,
        Action.NO_SASL,
        Action.SUBSCRIBE,
        Action.SUBSCRIBE_LATER,
    }


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_a_broker_that_does_not_know_the_sequence_may_have_lost_records(code):
    assert doubts_the_log(code) == (code in (E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID))


# -------------------------------------------------------------------------------------- only the table decides

DECIDE_THEMSELVES = {
    (
        "sending/produce_results.py",
        "ProduceResults._partition_answered",
    ): "a success does not depend on conditions of the batch",
    ("sending/refusals.py", "PartitionAnswer.refusal"): "the text of a response whose success was rejected",
    ("sending/produce_results.py", "ProduceResults._is_repetition"): "a condition that the table uses",
    ("cluster.py", "Cluster.topic"): "whether a snapshot has the topic",
    ("cluster.py", "_merging_topic"): "whether a response has partitions of the topic",
    (
        "transactions/coordinator_messages.py",
        "worst_of_fetched",
    ): "an error of the group takes precedence over those of its partitions",
    ("network/metadata.py", "Metadata._too_late"): "whether a snapshot has the topic",
    ("cli/cluster_state.py", "check_topic"): "`check` shows the code, and sends nothing again",
    ("cli/cluster_state.py", "check_producer_id"): "`check` shows the code once the table says to stop",
    ("protocol/api.py", "_begun"): "the format of a rejecting ApiVersions response (KIP-511)",
}
"""Functions that examine a code, with the reason why they do not decide the meaning of an error."""
READ_COMPILED = {
    "if end - at < fixed or get_int(at + 4, 2) != 0:": "any error is left to the declared decoder",
    "if is_flexible and (at[0] != 0 or at[1] != 0) or not is_flexible and get_int(at, 2) != -1:": "a text's length",
}


def source_files(*patterns: str) -> list[Path]:
    """Return the package's source files, except the table and the brokers for tests."""
    files = [path for pattern in patterns for path in PACKAGE.rglob(pattern)]
    return sorted(
        path for path in files if path.name != "outcomes.py" and path.parts[len(PACKAGE.parts)] != "testing"
    )


@pytest.mark.promise("Error table", "no code outside the table decides what an error means")
def test_only_the_table_compares_error_codes():
    found = {
        (path.relative_to(PACKAGE).as_posix(), decision.where)
        for path in source_files("*.py")
        for decision in decisions(path.read_text())
    }

    assert found == DECIDE_THEMSELVES.keys()


def test_compiled_code_compares_no_error_codes():
    files = source_files("*.pyx", "*.pxi")
    found = {
        path.read_text().splitlines()[line - 1].strip()
        for path in files
        for line in compiled_decisions(path.read_text())
    }

    assert len(files) >= 3
    assert found == READ_COMPILED.keys()


@pytest.mark.promise("Error table", "no code outside the table decides what an error means")
@pytest.mark.parametrize(
    "planted",
    [
        "if answer.error_code == 0: pass",
        "x = answer.error_code != ErrorCode.NONE",
        "if code in (ErrorCode.NONE, 3): pass",
        "match code:\n    case ErrorCode.NONE: pass",
        "match answer.error_code:\n    case 3: pass",
        "if answer.error_code: pass",
        "x = not answer.partition_error_code",
        "x = answer.error_code or 3",
        "x = 1 if answer.error_code else 2",
        "while bool(answer.error_code): pass",
        "x = [one for one in answers if one.error_code]",
        "code = answer.error_code\nif code: pass",
        "def f():\n    code, name = answer.error_code, 'x'\n    other = code\n    return other == 7",
        "if (code := answer.error_code) and x: pass",
        "def f(error_code):\n    assert not error_code",
        "f(lambda answer: answer.error_code == 3)",
        "x = info.error == 3",
    ],
)
def test_a_planted_decision_is_found(planted):
    assert decisions(planted)


@pytest.mark.parametrize(
    "fine",
    [
        "x = decide(api, answer.error_code).action is Action.FAIL",
        "if depends_on(api, answer.error_code): pass",
        "raise BrokerError(code=answer.error_code)",
        "if batch.error is None: pass",
        "def f():\n    code = answer.error_code\ndef g(code):\n    return code == 3",
        "error = 'answer.error_code == 3'",
    ],
)
def test_passing_a_code_on_is_not_a_decision(fine):
    assert not decisions(fine)


@pytest.mark.parametrize(
    "planted",
    [
        "    if error_code != 0:",
        "    cdef int code = answer.error_code\n    if code:",
        "    code = <int>batch.error_code\n    return code == 3",
        "    if get_int(at, 2) == 6:",
        "    x = ErrorCode.NONE if ok else y",
    ],
)
def test_a_planted_decision_in_compiled_code_is_found(planted):
    assert compiled_decisions(f"cdef int f():\n{planted}\n")


def test_passing_a_code_on_in_compiled_code_is_not_a_decision():
    source = (
        "cdef int f():\n    # if error_code == 3\n    text = 'error_code == 3'\n    g(answer.error_code)\n"
    )

    assert compiled_decisions(source) == []
