"""The error table: total, honest about what may be persisted, and the only place that decides."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from aioproducer import errors
from aioproducer.outcomes import (
    TABLE,
    UNKNOWN_CODES,
    Action,
    Condition,
    Failure,
    Row,
    advice,
    decide,
    decide_failure,
    failure_of,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.types import Outcome

PACKAGE = Path(__file__).parent.parent / "aioproducer"
NO, MAYBE = Outcome.NOT_PERSISTED, Outcome.UNKNOWN
PRODUCE = ApiKey.PRODUCE

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

IN_TRANSACTION = {Condition.TRANSACTION, Condition.V2}


def rows_of(api):
    """All rows of an API, those of unknown codes included."""
    rules = [
        rule for key, found in TABLE.items() if isinstance(key, tuple) and key[0] is api for rule in found
    ]
    return [rule.row for rule in (*rules, *UNKNOWN_CODES[api])]


@pytest.mark.parametrize("api", UNKNOWN_CODES, ids=lambda api: api.name)
@pytest.mark.parametrize("code", [*ErrorCode, -2, 9999, 32_767, -32_768])
def test_each_code_of_each_api_has_a_row_whatever_holds(api, code):
    for conditions in ((), set(Condition), *({condition} for condition in Condition)):
        row = decide(api, int(code), conditions)
        assert isinstance(row, Row)
        assert isinstance(row.action, Action)
        assert isinstance(row.outcome, Outcome)


@pytest.mark.parametrize("failure", Failure)
def test_each_failure_has_a_row_whatever_holds(failure):
    for conditions in ((), set(Condition), {Condition.ACKS_0}):
        assert isinstance(decide_failure(failure, conditions), Row)


def test_each_entry_ends_with_a_rule_that_needs_nothing_and_none_stands_behind_it():
    for key, rules in [*TABLE.items(), *UNKNOWN_CODES.items()]:
        assert not rules[-1].when, key
        assert all(rule.when for rule in rules[:-1]), (
            f"{key}: a rule that needs nothing hides those behind it"
        )
        for index, rule in enumerate(rules):
            hidden = [earlier for earlier in rules[:index] if earlier.when < rule.when]
            assert not hidden, f"{key}: {rule} is never reached"


def test_the_table_can_not_be_changed():
    with pytest.raises(TypeError):
        TABLE[PRODUCE, 0] = ()  # type: ignore[index]  # that is the point


# ------------------------------------------------------------------------------------------------------ Produce


@pytest.mark.parametrize("code", sorted(AFTER_AN_APPEND), ids=lambda code: code.name)
def test_code_that_may_come_after_an_append_leaves_the_outcome_unknown(code):
    assert decide(PRODUCE, code).outcome is MAYBE
    assert decide(PRODUCE, code, IN_TRANSACTION).outcome is MAYBE


def test_no_other_code_of_produce_leaves_it_unknown_by_itself():
    unknown = {
        code for code in ErrorCode if (PRODUCE, code) in TABLE and decide(PRODUCE, code).outcome is MAYBE
    }

    assert unknown == AFTER_AN_APPEND - {ErrorCode.UNKNOWN_SERVER_ERROR}


@pytest.mark.parametrize("code", [-1, -2, 9999, 32_767, -32_768, max(ErrorCode) + 1])
def test_code_that_nobody_knows_fails_with_an_unknown_outcome(code):
    assert decide(PRODUCE, code) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code, IN_TRANSACTION) == Row(Action.ABORT, MAYBE)


def test_only_an_answer_without_error_and_a_duplicate_succeed():
    succeed = {code: decide(PRODUCE, code).action for code in ErrorCode}

    assert [code for code, action in succeed.items() if action is Action.SUCCEED] == [ErrorCode.NONE]
    assert [code for code, action in succeed.items() if action is Action.DUPLICATE] == [
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    ]


@pytest.mark.parametrize("code", sorted(ASK_FOR_METADATA), ids=lambda code: code.name)
def test_code_that_says_metadata_is_old_is_tried_again_after_a_refresh(code):
    assert decide(PRODUCE, code).action is Action.REFRESH


LOST = [
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
]


@pytest.mark.parametrize("code", LOST, ids=lambda code: code.name)
def test_a_refused_sequence_is_repaired_by_a_new_epoch_unless_the_batch_is_in_doubt(code):
    assert decide(PRODUCE, code) == Row(Action.RENUMBER, NO)
    assert decide(PRODUCE, code, {Condition.FOLLOWER}) == Row(Action.HOLD, NO)
    assert decide(PRODUCE, code, {Condition.FOLLOWER, Condition.IN_DOUBT}) == Row(Action.HOLD, NO)
    assert decide(PRODUCE, code, {Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code, {Condition.NOT_IDEMPOTENT}) == Row(Action.FAIL, NO)


@pytest.mark.parametrize("code", LOST, ids=lambda code: code.name)
def test_in_a_transaction_no_batch_ever_gets_other_numbers(code):
    for condition in Condition:
        for version in (Condition.V1, Condition.V2):
            row = decide(PRODUCE, code, {Condition.TRANSACTION, version, condition})
            assert row.action not in (Action.RENUMBER, Action.RESEND_INNOCENT)


def test_a_fenced_epoch_needs_the_answer_to_an_abort_with_v2_and_a_new_start_with_v1():
    code = ErrorCode.INVALID_PRODUCER_EPOCH
    assert decide(PRODUCE, code, {Condition.TRANSACTION, Condition.V2}).action is Action.ABORT
    assert decide(PRODUCE, code, {Condition.TRANSACTION, Condition.V1}).action is Action.REINIT


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_a_batch_that_is_too_large_is_split_unless_it_is_in_doubt_or_one_record(code):
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS}) == Row(Action.SPLIT, NO)
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS, *IN_TRANSACTION}) == Row(Action.SPLIT, NO)
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS, Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code) == Row(Action.FAIL, NO)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP])
def test_the_innocent_are_sent_again_where_the_broker_named_the_culprits(code):
    named = {Condition.RECORD_ERRORS, Condition.SEVERAL_RECORDS}
    assert decide(PRODUCE, code, named) == Row(Action.RESEND_INNOCENT, NO)
    assert decide(PRODUCE, code, named | {Condition.IN_DOUBT}) == Row(Action.FAIL, MAYBE)
    assert decide(PRODUCE, code, named | IN_TRANSACTION) == Row(Action.ABORT, NO)
    assert decide(PRODUCE, code, {Condition.SEVERAL_RECORDS}) == Row(Action.FAIL, NO)


def test_not_enough_replicas_is_told_from_a_partition_that_could_not_be_verified():
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    assert decide(PRODUCE, code, IN_TRANSACTION) == Row(Action.RETRY, NO)
    assert decide(PRODUCE, code, {*IN_TRANSACTION, Condition.VERIFICATION}) == Row(Action.RETRY_SOON, NO)


# ---------------------------------------------------------------------------------------------------- failures


def test_only_what_was_never_written_is_surely_not_persisted():
    not_persisted = {failure for failure in Failure if decide_failure(failure).outcome is NO}

    assert not_persisted == {Failure.NOT_WRITTEN, Failure.NO_COMMON_VERSION}


def test_without_acknowledgements_nothing_that_was_written_is_sent_again():
    for failure in set(Failure) - {Failure.NOT_WRITTEN, Failure.NO_COMMON_VERSION}:
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
def test_each_error_of_a_connection_stands_for_one_failure(error, failure):
    assert failure_of(error) is failure


# ------------------------------------------------------------------------------------------------ transactions


@pytest.mark.parametrize("version", [Condition.V1, Condition.V2])
def test_a_commit_is_called_unknown_only_if_an_earlier_attempt_was_not_answered(version):
    commit = {version, Condition.COMMIT}
    for code in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ):
        assert decide(ApiKey.END_TXN, code, commit) == Row(Action.REINIT, NO)
        assert decide(ApiKey.END_TXN, code, {*commit, Condition.UNANSWERED}) == Row(Action.REINIT, MAYBE)
        assert decide(ApiKey.END_TXN, code, {version, Condition.UNANSWERED}) == Row(Action.REINIT, NO), (
            "an abort"
        )


def test_a_commit_in_the_wrong_state_was_timed_out_with_v2_and_is_anybodys_guess_with_v1():
    code = ErrorCode.INVALID_TXN_STATE
    unanswered = {Condition.COMMIT, Condition.UNANSWERED}
    assert decide(ApiKey.END_TXN, code, {Condition.V2, *unanswered}) == Row(Action.ABORT, NO)
    assert decide(ApiKey.END_TXN, code, {Condition.V1, *unanswered}) == Row(Action.REINIT, MAYBE)


def test_an_unknown_answer_to_a_commit_leaves_it_unknown():
    assert decide(ApiKey.END_TXN, -1, {Condition.COMMIT}) == Row(Action.REINIT, MAYBE)
    assert decide(ApiKey.END_TXN, 9999, {Condition.COMMIT}) == Row(Action.REINIT, MAYBE)
    assert decide(ApiKey.END_TXN, 9999) == Row(Action.REINIT, NO)


@pytest.mark.parametrize("api", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN])
def test_a_moved_coordinator_is_looked_for_and_another_transaction_is_waited_for(api):
    assert decide(api, ErrorCode.NOT_COORDINATOR).action is Action.COORDINATOR
    assert decide(api, ErrorCode.COORDINATOR_NOT_AVAILABLE).action is Action.COORDINATOR
    assert decide(api, ErrorCode.CONCURRENT_TRANSACTIONS).action is Action.RETRY
    assert decide(api, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS).action is Action.RETRY


def test_transactional_apis_know_only_actions_that_the_coordinator_carries_out():
    known = {Action.SUCCEED, Action.RETRY, Action.COORDINATOR, Action.ABORT, Action.REINIT, Action.FAIL}
    for api in UNKNOWN_CODES:
        if api not in (PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS):
            sasl = {Action.CLOSE, Action.OTHER_MECHANISM, Action.NO_SASL}
            assert {row.action for row in rows_of(api)} <= known | sasl, api


def test_advice_ends_a_sentence():
    assert advice(ErrorCode.CLUSTER_AUTHORIZATION_FAILED).startswith("; ")
    assert advice(ErrorCode.CORRUPT_MESSAGE) == ""


# ------------------------------------------------------------------------------------------- nobody else decides


def asks_the_table(operand: ast.expr) -> bool:
    call = operand.value if isinstance(operand, ast.Attribute) else operand
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "decide"


def decisions(source: str) -> list[int]:
    """Lines that compare something with an error code, or with a member of ErrorCode."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            # `decide(api, answer.error_code).action is ...` asks the table.
            operands = [operand for operand in (node.left, *node.comparators) if not asks_the_table(operand)]
            names = {
                sub.attr
                for operand in operands
                for sub in ast.walk(operand)
                if isinstance(sub, ast.Attribute)
            }
            plain = {sub.id for operand in operands for sub in ast.walk(operand) if isinstance(sub, ast.Name)}
            if names & {"error_code", "partition_error_code"} or plain & {"ErrorCode", "Code"}:
                found.append(node.lineno)
        if isinstance(node, ast.Match) and any("ErrorCode" in ast.dump(case.pattern) for case in node.cases):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "path",
    sorted(path for path in PACKAGE.glob("*.py") if path.name != "outcomes.py"),
    ids=lambda path: path.name,
)
def test_nothing_but_the_table_compares_error_codes(path):
    assert decisions(path.read_text()) == [], f"{path.name} decides by an error code"


@pytest.mark.parametrize(
    "planted",
    [
        "if answer.error_code == 0: pass",
        "x = answer.error_code != ErrorCode.NONE",
        "if code in (ErrorCode.NONE, 3): pass",
        "match code:\n    case ErrorCode.NONE: pass",
    ],
)
def test_a_planted_decision_is_found(planted):
    assert decisions(planted)
