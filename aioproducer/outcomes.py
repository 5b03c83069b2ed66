"""What to do about each answer to a Produce request, and what it says about the records: one table.

The outcome is NOT_PERSISTED only for errors that a broker can raise before its append. "Retriable" does not imply it:
with acks=all a leader appends first and may answer NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION or
KAFKA_STORAGE_ERROR afterwards (kafka.server.DelayedProduce)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.types import Outcome


class Action(Enum):
    SUCCEED = "succeed"
    RETRY = "retry"
    REFRESH = "retry after a metadata refresh"
    REPAIR = "repair the sequence"
    FAIL = "fail"


class Row(NamedTuple):
    action: Action
    outcome: Outcome


NO, MAYBE = Outcome.NOT_PERSISTED, Outcome.UNKNOWN

PRODUCE: dict[int, Row] = {
    Code.NONE: Row(Action.SUCCEED, NO),
    Code.DUPLICATE_SEQUENCE_NUMBER: Row(Action.SUCCEED, NO),
    Code.CORRUPT_MESSAGE: Row(Action.RETRY, NO),
    Code.REQUEST_TIMED_OUT: Row(Action.RETRY, MAYBE),
    Code.COORDINATOR_LOAD_IN_PROGRESS: Row(Action.RETRY, NO),
    Code.COORDINATOR_NOT_AVAILABLE: Row(Action.RETRY, NO),
    Code.NOT_COORDINATOR: Row(Action.RETRY, NO),
    Code.NOT_ENOUGH_REPLICAS: Row(Action.RETRY, NO),
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Row(Action.RETRY, MAYBE),
    Code.CONCURRENT_TRANSACTIONS: Row(Action.RETRY, NO),
    Code.THROTTLING_QUOTA_EXCEEDED: Row(Action.RETRY, NO),
    Code.UNKNOWN_LEADER_EPOCH: Row(Action.RETRY, NO),
    Code.UNKNOWN_TOPIC_OR_PARTITION: Row(Action.REFRESH, MAYBE),
    Code.LEADER_NOT_AVAILABLE: Row(Action.REFRESH, NO),
    Code.NOT_LEADER_OR_FOLLOWER: Row(Action.REFRESH, MAYBE),
    Code.BROKER_NOT_AVAILABLE: Row(Action.REFRESH, NO),
    Code.REPLICA_NOT_AVAILABLE: Row(Action.REFRESH, NO),
    Code.NETWORK_EXCEPTION: Row(Action.REFRESH, MAYBE),
    Code.KAFKA_STORAGE_ERROR: Row(Action.REFRESH, MAYBE),
    Code.LISTENER_NOT_FOUND: Row(Action.REFRESH, NO),
    Code.FENCED_LEADER_EPOCH: Row(Action.REFRESH, NO),
    Code.UNKNOWN_TOPIC_ID: Row(Action.REFRESH, NO),
    Code.INCONSISTENT_TOPIC_ID: Row(Action.REFRESH, NO),
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: Row(Action.REPAIR, NO),
    Code.UNKNOWN_PRODUCER_ID: Row(Action.REPAIR, NO),
    Code.INVALID_PRODUCER_EPOCH: Row(Action.REPAIR, NO),
    Code.MESSAGE_TOO_LARGE: Row(Action.FAIL, NO),
    Code.RECORD_LIST_TOO_LARGE: Row(Action.FAIL, NO),
    Code.INVALID_TOPIC_EXCEPTION: Row(Action.FAIL, NO),
    Code.INVALID_REQUIRED_ACKS: Row(Action.FAIL, NO),
    Code.TOPIC_AUTHORIZATION_FAILED: Row(Action.FAIL, NO),
    Code.CLUSTER_AUTHORIZATION_FAILED: Row(Action.FAIL, NO),
    Code.INVALID_TIMESTAMP: Row(Action.FAIL, NO),
    Code.UNSUPPORTED_VERSION: Row(Action.FAIL, NO),
    Code.INVALID_REQUEST: Row(Action.FAIL, NO),
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: Row(Action.FAIL, NO),
    Code.POLICY_VIOLATION: Row(Action.FAIL, NO),
    Code.UNSUPPORTED_COMPRESSION_TYPE: Row(Action.FAIL, NO),
    Code.INVALID_RECORD: Row(Action.FAIL, NO),
    Code.PRODUCER_FENCED: Row(Action.FAIL, NO),
}

UNKNOWN_CODE = Row(Action.FAIL, MAYBE)

INIT_PRODUCER_ID_RETRIABLE: frozenset[int] = frozenset(
    {
        Code.REQUEST_TIMED_OUT,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.CONCURRENT_TRANSACTIONS,
        Code.NETWORK_EXCEPTION,
        Code.UNKNOWN_SERVER_ERROR,
    }
)


def of_produce(code: int) -> Row:
    """The row of a partition's error code; codes that nobody knows are UNKNOWN."""
    return PRODUCE.get(code, UNKNOWN_CODE)
