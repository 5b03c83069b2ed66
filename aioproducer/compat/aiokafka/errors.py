"""The names from aiokafka.errors, so that `except` clauses written for aiokafka keep working.

    from aioproducer.compat.aiokafka.errors import KafkaError, KafkaTimeoutError, NotEnoughReplicasError

Each error that the compat producer raises is an aioproducer error, with the usual fields and text, and also an instance
of the classes that aiokafka's producer would have raised in the same situation; translation.py decides which. Errors
that concern only consumers or administration can be imported, but are never raised.

broker_errors.py defines the classes with an error code; this module defines all others.
"""

from __future__ import annotations

from aioproducer.compat.aiokafka.broker_errors import (
    AiokafkaError,
    BrokerNotAvailableError,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptRecordException,
    DelegationTokenAuthDisabled,
    DelegationTokenAuthorizationFailed,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    DuplicateSequenceNumber,
    FetchSessionIdNotFound,
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupIdNotFound,
    GroupLoadInProgressError,
    IllegalGenerationError,
    IllegalSaslStateError,
    InconsistentGroupProtocolError,
    InvalidCommitOffsetSizeError,
    InvalidConfigurationError,
    InvalidFetchRequestError,
    InvalidFetchSessionEpoch,
    InvalidGroupIdError,
    InvalidMessageError,
    InvalidPartitionsError,
    InvalidPrincipalType,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidSessionTimeoutError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaStorageError,
    LeaderNotAvailableError,
    ListenerNotFound,
    LogDirNotFound,
    MemberIdRequired,
    MessageSizeTooLargeError,
    NoError,
    NonEmptyGroup,
    NotControllerError,
    NotCoordinatorError,
    NotCoordinatorForGroupError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    PolicyViolationError,
    ReassignmentInProgress,
    RebalanceInProgressError,
    RecordListTooLargeError,
    ReplicaNotAvailableError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    SecurityDisabled,
    StaleControllerEpochError,
    StaleLeaderEpochCodeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
    UnknownError,
    UnknownMemberIdError,
    UnknownProducerId,
    UnknownTopicOrPartitionError,
    UnsupportedForMessageFormatError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    for_code,
)
from aioproducer.errors import (
    IllegalStateError,
    KafkaError,
    ProducerClosed,
    RecordTooLargeError,
)

__all__ = [
    "AuthenticationFailedError",
    "AuthenticationMethodNotSupported",
    "BrokerNotAvailableError",
    "BrokerResponseError",
    "Cancelled",
    "ClusterAuthorizationFailedError",
    "CommitFailedError",
    "ConcurrentTransactions",
    "ConsumerStoppedError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorrelationIdError",
    "CorruptRecordException",
    "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired",
    "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed",
    "DuplicateSequenceNumber",
    "FetchSessionIdNotFound",
    "GroupAuthorizationFailedError",
    "GroupCoordinatorNotAvailableError",
    "GroupIdNotFound",
    "GroupLoadInProgressError",
    "IllegalArgumentError",
    "IllegalGenerationError",
    "IllegalOperation",
    "IllegalSaslStateError",
    "IllegalStateError",
    "IncompatibleBrokerVersion",
    "InconsistentGroupProtocolError",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigurationError",
    "InvalidFetchRequestError",
    "InvalidFetchSessionEpoch",
    "InvalidGroupIdError",
    "InvalidMessageError",
    "InvalidPartitionsError",
    "InvalidPrincipalType",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidReplicationAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeout",
    "InvalidTxnState",
    "KafkaConfigurationError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaProtocolError",
    "KafkaStorageError",
    "KafkaTimeoutError",
    "KafkaUnavailableError",
    "LeaderNotAvailableError",
    "ListenerNotFound",
    "LogDirNotFound",
    "MemberIdRequired",
    "MessageSizeTooLargeError",
    "MetadataEmptyBrokerList",
    "NoBrokersAvailable",
    "NoError",
    "NoOffsetForPartitionError",
    "NodeNotReadyError",
    "NonEmptyGroup",
    "NotControllerError",
    "NotCoordinatorError",
    "NotCoordinatorForGroupError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderForPartitionError",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OperationNotAttempted",
    "OutOfOrderSequenceNumber",
    "PolicyViolationError",
    "ProducerClosed",
    "ProducerFenced",
    "QuotaViolationError",
    "ReassignmentInProgress",
    "RebalanceInProgressError",
    "RecordListTooLargeError",
    "RecordTooLargeError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "SaslAuthenticationFailed",
    "SecurityDisabled",
    "StaleControllerEpochError",
    "StaleLeaderEpochCodeError",
    "StaleMetadata",
    "TooManyInFlightRequests",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TransactionCoordinatorFenced",
    "TransactionalIdAuthorizationFailed",
    "UnknownError",
    "UnknownMemberIdError",
    "UnknownProducerId",
    "UnknownTopicOrPartitionError",
    "UnrecognizedBrokerVersion",
    "UnsupportedCodecError",
    "UnsupportedForMessageFormatError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "for_code",
]

# The errors that have the same name and meaning in aioproducer and aiokafka are imported above. KafkaError is one of
# them, so `except KafkaError` catches all errors, including those without a counterpart in aiokafka.


class ConsumerStoppedError(Exception):
    """A consumer was stopped. Never raised by aioproducer."""


class IllegalOperation(Exception):
    """The call is not allowed now, for example because no transaction is open."""


class IllegalArgumentError(AiokafkaError):
    """An argument is invalid. Never raised by aioproducer."""


class NoBrokersAvailable(AiokafkaError):
    """No broker answered."""

    retriable = True


class NodeNotReadyError(AiokafkaError):
    """The client could not connect to the broker."""

    retriable = True


class KafkaProtocolError(AiokafkaError):
    """A broker sent bytes that violate Kafka's protocol."""

    retriable = True


class CorrelationIdError(KafkaProtocolError):
    """A broker answered a request other than the oldest one."""


class Cancelled(AiokafkaError):
    """The request was cancelled. Never raised by aioproducer."""

    retriable = True


class TooManyInFlightRequests(AiokafkaError):
    """The connection has too many requests in flight. Never raised by aioproducer."""

    retriable = True


class StaleMetadata(AiokafkaError):
    """The metadata does not contain the broker. Never raised by aioproducer."""

    retriable = True


class MetadataEmptyBrokerList(AiokafkaError):
    """The metadata contains no broker. Never raised by aioproducer."""

    retriable = True


class UnrecognizedBrokerVersion(AiokafkaError):
    """The version of the broker is unknown. Never raised by aioproducer."""


class IncompatibleBrokerVersion(AiokafkaError):
    """The broker and this client have no request version in common."""


class CommitFailedError(AiokafkaError):
    """A consumer could not commit its offsets. Never raised by aioproducer."""


class AuthenticationMethodNotSupported(AiokafkaError):
    """The broker does not accept this SASL mechanism."""


class AuthenticationFailedError(AiokafkaError):
    """The broker rejected the credentials, or the client rejected the broker's certificate."""


class KafkaUnavailableError(AiokafkaError):
    """The cluster is not available. Never raised by aioproducer."""


class KafkaTimeoutError(AiokafkaError):
    """The record could not be buffered in time, and was not sent."""


class KafkaConnectionError(AiokafkaError):
    """The client could not connect to any broker, or a connection was lost."""

    retriable = True


class UnsupportedCodecError(AiokafkaError):
    """The compression codec is not available. Never raised by aioproducer: every codec is part of the installation."""


class KafkaConfigurationError(AiokafkaError):
    """A setting is unknown or malformed, or contradicts another one. It is also a ValueError."""


class QuotaViolationError(AiokafkaError):
    """A quota was violated. Never raised by aioproducer."""


class NoOffsetForPartitionError(AiokafkaError):
    """A consumer has no offset for a partition. Never raised by aioproducer."""


class ProducerFenced(AiokafkaError):
    """Another producer uses the same transactional id."""
