"""The aiokafka.errors classes that have a Kafka error code, a table of them, and their base class.

Users import these names from errors.py."""

from __future__ import annotations

from typing import ClassVar

from aioproducer.errors import KafkaError


class AiokafkaError(KafkaError, RuntimeError):
    """The base class of the errors here and of most in errors.py. Like aiokafka's KafkaError, it is a RuntimeError."""


class BrokerResponseError(AiokafkaError):
    """A broker answered with an error code."""

    errno: ClassVar[int | None] = None
    """Kafka's error code."""


class NoError(BrokerResponseError):
    """No error. Never raised by aioproducer."""

    errno = 0


class UnknownError(BrokerResponseError):
    """Kafka's UNKNOWN_SERVER_ERROR."""

    errno = -1


class OffsetOutOfRangeError(BrokerResponseError):
    """Kafka's OFFSET_OUT_OF_RANGE."""

    errno = 1


class CorruptRecordException(BrokerResponseError):
    """Kafka's CORRUPT_MESSAGE."""

    errno = 2


InvalidMessageError = CorruptRecordException


class UnknownTopicOrPartitionError(BrokerResponseError):
    """Kafka's UNKNOWN_TOPIC_OR_PARTITION."""

    errno = 3
    retriable = True


class InvalidFetchRequestError(BrokerResponseError):
    """Kafka's INVALID_FETCH_SIZE."""

    errno = 4


class LeaderNotAvailableError(BrokerResponseError):
    """Kafka's LEADER_NOT_AVAILABLE."""

    errno = 5
    retriable = True


class NotLeaderForPartitionError(BrokerResponseError):
    """Kafka's NOT_LEADER_OR_FOLLOWER."""

    errno = 6
    retriable = True


class RequestTimedOutError(BrokerResponseError):
    """Kafka's REQUEST_TIMED_OUT."""

    errno = 7
    retriable = True


class BrokerNotAvailableError(BrokerResponseError):
    """Kafka's BROKER_NOT_AVAILABLE."""

    errno = 8


class ReplicaNotAvailableError(BrokerResponseError):
    """Kafka's REPLICA_NOT_AVAILABLE."""

    errno = 9


class MessageSizeTooLargeError(BrokerResponseError):
    """Kafka's MESSAGE_TOO_LARGE."""

    errno = 10


class StaleControllerEpochError(BrokerResponseError):
    """Kafka's STALE_CONTROLLER_EPOCH."""

    errno = 11


class OffsetMetadataTooLargeError(BrokerResponseError):
    """Kafka's OFFSET_METADATA_TOO_LARGE."""

    errno = 12


class StaleLeaderEpochCodeError(BrokerResponseError):
    """Kafka's NETWORK_EXCEPTION."""

    errno = 13


class GroupLoadInProgressError(BrokerResponseError):
    """Kafka's COORDINATOR_LOAD_IN_PROGRESS."""

    errno = 14
    retriable = True


CoordinatorLoadInProgressError = GroupLoadInProgressError


class GroupCoordinatorNotAvailableError(BrokerResponseError):
    """Kafka's COORDINATOR_NOT_AVAILABLE."""

    errno = 15
    retriable = True


CoordinatorNotAvailableError = GroupCoordinatorNotAvailableError


class NotCoordinatorForGroupError(BrokerResponseError):
    """Kafka's NOT_COORDINATOR."""

    errno = 16
    retriable = True


NotCoordinatorError = NotCoordinatorForGroupError


class InvalidTopicError(BrokerResponseError):
    """Kafka's INVALID_TOPIC_EXCEPTION."""

    errno = 17


class RecordListTooLargeError(BrokerResponseError):
    """Kafka's RECORD_LIST_TOO_LARGE."""

    errno = 18


class NotEnoughReplicasError(BrokerResponseError):
    """Kafka's NOT_ENOUGH_REPLICAS."""

    errno = 19
    retriable = True


class NotEnoughReplicasAfterAppendError(BrokerResponseError):
    """Kafka's NOT_ENOUGH_REPLICAS_AFTER_APPEND."""

    errno = 20
    retriable = True


class InvalidRequiredAcksError(BrokerResponseError):
    """Kafka's INVALID_REQUIRED_ACKS."""

    errno = 21


class IllegalGenerationError(BrokerResponseError):
    """Kafka's ILLEGAL_GENERATION."""

    errno = 22


class InconsistentGroupProtocolError(BrokerResponseError):
    """Kafka's INCONSISTENT_GROUP_PROTOCOL."""

    errno = 23


class InvalidGroupIdError(BrokerResponseError):
    """Kafka's INVALID_GROUP_ID."""

    errno = 24


class UnknownMemberIdError(BrokerResponseError):
    """Kafka's UNKNOWN_MEMBER_ID."""

    errno = 25


class InvalidSessionTimeoutError(BrokerResponseError):
    """Kafka's INVALID_SESSION_TIMEOUT."""

    errno = 26


class RebalanceInProgressError(BrokerResponseError):
    """Kafka's REBALANCE_IN_PROGRESS."""

    errno = 27


class InvalidCommitOffsetSizeError(BrokerResponseError):
    """Kafka's INVALID_COMMIT_OFFSET_SIZE."""

    errno = 28


class TopicAuthorizationFailedError(BrokerResponseError):
    """Kafka's TOPIC_AUTHORIZATION_FAILED."""

    errno = 29


class GroupAuthorizationFailedError(BrokerResponseError):
    """Kafka's GROUP_AUTHORIZATION_FAILED."""

    errno = 30


class ClusterAuthorizationFailedError(BrokerResponseError):
    """Kafka's CLUSTER_AUTHORIZATION_FAILED."""

    errno = 31


class InvalidTimestampError(BrokerResponseError):
    """Kafka's INVALID_TIMESTAMP."""

    errno = 32


class UnsupportedSaslMechanismError(BrokerResponseError):
    """Kafka's UNSUPPORTED_SASL_MECHANISM."""

    errno = 33


class IllegalSaslStateError(BrokerResponseError):
    """Kafka's ILLEGAL_SASL_STATE."""

    errno = 34


class UnsupportedVersionError(BrokerResponseError):
    """Kafka's UNSUPPORTED_VERSION."""

    errno = 35


class TopicAlreadyExistsError(BrokerResponseError):
    """Kafka's TOPIC_ALREADY_EXISTS."""

    errno = 36


class InvalidPartitionsError(BrokerResponseError):
    """Kafka's INVALID_PARTITIONS."""

    errno = 37


class InvalidReplicationFactorError(BrokerResponseError):
    """Kafka's INVALID_REPLICATION_FACTOR."""

    errno = 38


class InvalidReplicationAssignmentError(BrokerResponseError):
    """Kafka's INVALID_REPLICA_ASSIGNMENT."""

    errno = 39


class InvalidConfigurationError(BrokerResponseError):
    """Kafka's INVALID_CONFIG."""

    errno = 40


class NotControllerError(BrokerResponseError):
    """Kafka's NOT_CONTROLLER."""

    errno = 41
    retriable = True


class InvalidRequestError(BrokerResponseError):
    """Kafka's INVALID_REQUEST."""

    errno = 42


class UnsupportedForMessageFormatError(BrokerResponseError):
    """Kafka's UNSUPPORTED_FOR_MESSAGE_FORMAT."""

    errno = 43


class PolicyViolationError(BrokerResponseError):
    """Kafka's POLICY_VIOLATION."""

    errno = 44


class OutOfOrderSequenceNumber(BrokerResponseError):
    """Kafka's OUT_OF_ORDER_SEQUENCE_NUMBER."""

    errno = 45


class DuplicateSequenceNumber(BrokerResponseError):
    """Kafka's DUPLICATE_SEQUENCE_NUMBER."""

    errno = 46


class InvalidProducerEpoch(BrokerResponseError):
    """Kafka's INVALID_PRODUCER_EPOCH."""

    errno = 47


class InvalidTxnState(BrokerResponseError):
    """Kafka's INVALID_TXN_STATE."""

    errno = 48


class InvalidProducerIdMapping(BrokerResponseError):
    """Kafka's INVALID_PRODUCER_ID_MAPPING."""

    errno = 49


class InvalidTransactionTimeout(BrokerResponseError):
    """Kafka's INVALID_TRANSACTION_TIMEOUT."""

    errno = 50


class ConcurrentTransactions(BrokerResponseError):
    """Kafka's CONCURRENT_TRANSACTIONS."""

    errno = 51


class TransactionCoordinatorFenced(BrokerResponseError):
    """Kafka's TRANSACTION_COORDINATOR_FENCED."""

    errno = 52


class TransactionalIdAuthorizationFailed(BrokerResponseError):
    """Kafka's TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""

    errno = 53


class SecurityDisabled(BrokerResponseError):
    """Kafka's SECURITY_DISABLED."""

    errno = 54


class OperationNotAttempted(BrokerResponseError):
    """Kafka's OPERATION_NOT_ATTEMPTED."""

    errno = 55


class KafkaStorageError(BrokerResponseError):
    """Kafka's KAFKA_STORAGE_ERROR."""

    errno = 56
    retriable = True


class LogDirNotFound(BrokerResponseError):
    """Kafka's LOG_DIR_NOT_FOUND."""

    errno = 57


class SaslAuthenticationFailed(BrokerResponseError):
    """Kafka's SASL_AUTHENTICATION_FAILED."""

    errno = 58


class UnknownProducerId(BrokerResponseError):
    """Kafka's UNKNOWN_PRODUCER_ID."""

    errno = 59


class ReassignmentInProgress(BrokerResponseError):
    """Kafka's REASSIGNMENT_IN_PROGRESS."""

    errno = 60


class DelegationTokenAuthDisabled(BrokerResponseError):
    """Kafka's DELEGATION_TOKEN_AUTH_DISABLED."""

    errno = 61


class DelegationTokenNotFound(BrokerResponseError):
    """Kafka's DELEGATION_TOKEN_NOT_FOUND."""

    errno = 62


class DelegationTokenOwnerMismatch(BrokerResponseError):
    """Kafka's DELEGATION_TOKEN_OWNER_MISMATCH."""

    errno = 63


class DelegationTokenRequestNotAllowed(BrokerResponseError):
    """Kafka's DELEGATION_TOKEN_REQUEST_NOT_ALLOWED."""

    errno = 64


class DelegationTokenAuthorizationFailed(BrokerResponseError):
    """Kafka's DELEGATION_TOKEN_AUTHORIZATION_FAILED."""

    errno = 65


class DelegationTokenExpired(BrokerResponseError):
    """Kafka's DELEGATION_TOKEN_EXPIRED."""

    errno = 66


class InvalidPrincipalType(BrokerResponseError):
    """Kafka's INVALID_PRINCIPAL_TYPE."""

    errno = 67


class NonEmptyGroup(BrokerResponseError):
    """Kafka's NON_EMPTY_GROUP."""

    errno = 68


class GroupIdNotFound(BrokerResponseError):
    """Kafka's GROUP_ID_NOT_FOUND."""

    errno = 69


class FetchSessionIdNotFound(BrokerResponseError):
    """Kafka's FETCH_SESSION_ID_NOT_FOUND."""

    errno = 70


class InvalidFetchSessionEpoch(BrokerResponseError):
    """Kafka's INVALID_FETCH_SESSION_EPOCH."""

    errno = 71


class ListenerNotFound(BrokerResponseError):
    """Kafka's LISTENER_NOT_FOUND."""

    errno = 72


class MemberIdRequired(BrokerResponseError):
    """Kafka's MEMBER_ID_REQUIRED."""

    errno = 79


_BY_CODE: dict[int, type[BrokerResponseError]] = {
    kind.errno: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, BrokerResponseError) and kind.errno is not None
}

for _kind in (BrokerResponseError, *_BY_CODE.values()):
    _kind.__module__ = "aioproducer.compat.aiokafka.errors"  # the public name; translation.py relies on it


def for_code(error_code: int) -> type[BrokerResponseError]:
    """Return the class for a Kafka error code, or UnknownError for a code that aiokafka does not know."""
    return _BY_CODE.get(error_code, UnknownError)
