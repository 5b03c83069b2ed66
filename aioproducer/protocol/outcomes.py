"""The error table: the action to take after each error or missing response, and the outcome of that attempt.

Only this table interprets error codes. Three other modules can end records without using the table, based on the
attempts so far: own_timeouts.py (a record's own timeout), giving_up.py (e.g. close()), and numbering.py (a batch that
can't be sent again).

A key is (API, error code) or a local failure; its value is a list of rules. The first rule whose conditions are all
met applies. The outcome is NOT_PERSISTED only for errors that a broker raises before it appends the batch. Some
retriable errors may be raised later: with acks=all, a leader appends first and may then still return
NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION or KAFKA_STORAGE_ERROR (kafka.server.DelayedProduce)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from aioproducer.errors import (
    BrokerConnectionError,
    CorrelationError,
    ForeignPartitionError,
    InvalidTopicError,
    KafkaError,
    MissingPartitionError,
    ProducerFencedError,
    ProtocolError,
    RequestTimedOutError,
    TopicAuthorizationError,
    TransactionReinitError,
    UnsupportedVersionError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.types import Outcome


class Action(Enum):
    """The action to take next. If a request covers several partitions, the action applies only to the partition
    with the error code."""

    # any request
    SUCCEED = "succeed"
    KEEP = "keep it"
    DUPLICATE = "succeed; the broker no longer knows the offset"
    RETRY = "try again after the back-off"
    FAIL = "fail"
    # Produce
    REFRESH = (
        "refresh the metadata and try again, immediately if the broker answered and another leader is known"
    )
    RETRY_SOON = "try again after a few milliseconds, with jitter"
    HOLD = "send the same bytes again once no earlier batch is pending"
    RENUMBER = "send again under a new epoch"
    NEW_PRODUCER_ID = "send again under a new producer id"
    SPLIT = "send again as two halves"
    RENEGOTIATE = "ask the broker for its versions again, on a new connection, and try again"
    DAMAGED = "fail; the bytes were damaged in this process's memory"
    RESEND_INNOCENT = "fail the records that the broker named, and send the others again under a new epoch"
    # transactions; FAIL for a record in a transaction also means ABORT
    ABORT = "fail; the transaction must be aborted"
    REINIT = "fail; this epoch can no longer be used, and init_transactions() gets a new one"
    COORDINATOR = "find the coordinator and try again"
    # metadata and connections
    REBOOTSTRAP = "start again from the bootstrap servers"
    DOWNGRADE = "ask once more, with a version that the broker supports"
    CLOSE = "close the connection and try again after the back-off"
    OTHER_MECHANISM = "fail; the broker accepts only other SASL mechanisms"
    NO_SASL = "fail; this listener does not use SASL"
    # metrics (KIP-714)
    SUBSCRIBE = "ask immediately which metrics the broker wants"
    SUBSCRIBE_LATER = "after the push interval, ask which metrics the broker wants"


class Condition(Enum):
    """The conditions on which a rule may depend. A rule depends on nothing else."""

    NOT_FIRST = "an earlier batch in the same partition is still pending"
    IN_DOUBT = "an earlier attempt may have been persisted"
    DAMAGED = "the bytes of the batch no longer match its checksum"
    SECOND_TIME = "the broker has given this answer to the same bytes before"
    THIRD_TIME = "the broker has given this answer to the same bytes at least twice before"
    SEVERAL_RECORDS = "the batch contains more than one record"
    RECORD_ERRORS = "the broker named the records that it rejects (KIP-467)"
    NOT_IDEMPOTENT = "the batch has no sequence number"
    VERIFICATION = "the error message says that the partition could not be verified to be in the transaction"
    STALE = "the producer's id or epoch now differs from the batch's"
    IN_FLIGHT = "the batch was written and has not been answered yet"
    GAPLESS = "enable_gapless_order is on"
    ENDLESS = "enable_endless_retries is on"
    ACKS_0 = "acks is 0"
    TRANSACTION = "the batch belongs to a transaction"
    REPETITION = (
        "the batch is a participant's first, and the broker answered that the batch was already in the log"
    )
    V1 = "transactions v1"
    V2 = "transactions v2 (KIP-890)"
    COMMIT = "the request is a commit"
    UNANSWERED = "an earlier attempt at the request may have been carried out"


class Failure(Enum):
    """The ways in which a request can end without an error code."""

    NOT_WRITTEN = "not connected: refused, unreachable, or closed before a byte was written"
    CUT = "the connection was lost after bytes were written"
    TIMED_OUT = "no answer within request_timeout_ms"
    WRONG_CORRELATION_ID = "the response belongs to another request"
    MISSING_PARTITION = "the response does not contain the partition"
    FOREIGN_PARTITION = "the response contains a partition that was not in the request"
    UNDECODABLE = "the response can't be decoded"
    NO_COMMON_VERSION = "client and broker have no request version in common"


class Moment(Enum):
    """Events, other than responses, that may end a batch. A batch that is kept is checked again before a retry."""

    EXPIRED = "delivery_timeout_ms has passed"
    BEHIND = "an earlier record in the same partition has failed, and enable_gapless_order is on"


class Row(NamedTuple):
    """A decision. `outcome` says whether this attempt persisted the records or, for EndTxn, committed the
    transaction."""

    action: Action
    outcome: Outcome


class Rule(NamedTuple):
    """A row and the conditions under which it applies."""

    when: frozenset[Condition]
    row: Row


Key = tuple[ApiKey, int] | Failure | Moment | tuple[ApiKey, Failure]

_A, _C = Action, Condition
_NO, _MAYBE = Outcome.NOT_PERSISTED, Outcome.UNKNOWN


def _rule(action: Action, outcome: Outcome, *when: Condition) -> Rule:
    return Rule(frozenset(when), Row(action, outcome))


def _produce() -> dict[Key, tuple[Rule, ...]]:
    by_code = {**_produce_transient(), **_produce_lost_state(), **_produce_rejected()}
    return {(ApiKey.PRODUCE, code): rules for code, rules in by_code.items()}


def _produce_transient() -> dict[int, tuple[Rule, ...]]:
    """Return the rules for success, for transient errors, and for errors after which the leader may have changed."""
    no, maybe = _NO, _MAYBE
    retry, refresh, refresh_in_doubt = _rule(_A.RETRY, no), _rule(_A.REFRESH, no), _rule(_A.REFRESH, maybe)
    # A batch that was damaged in transit should arrive intact on the next attempt. After three rejections, the
    # network is unlikely to be the cause.
    corrupt = (_rule(_A.DAMAGED, no, _C.DAMAGED), _rule(_A.FAIL, no, _C.THIRD_TIME), retry)
    return {
        # REPETITION: another participant may have used the same sequence numbers in this partition. The log contains
        # either that participant's records, or this batch's records from an earlier attempt.
        Code.NONE: (_rule(_A.ABORT, maybe, _C.REPETITION), _rule(_A.SUCCEED, no)),
        Code.DUPLICATE_SEQUENCE_NUMBER: (_rule(_A.ABORT, maybe, _C.REPETITION), _rule(_A.DUPLICATE, no)),
        # transient errors
        Code.CORRUPT_MESSAGE: corrupt,
        Code.REQUEST_TIMED_OUT: (_rule(_A.RETRY, maybe),),
        Code.COORDINATOR_LOAD_IN_PROGRESS: (retry,),
        Code.COORDINATOR_NOT_AVAILABLE: (retry,),
        Code.NOT_COORDINATOR: (retry,),
        Code.NOT_ENOUGH_REPLICAS: (_rule(_A.RETRY_SOON, no, _C.TRANSACTION, _C.VERIFICATION), retry),
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (_rule(_A.RETRY, maybe),),
        Code.CONCURRENT_TRANSACTIONS: (_rule(_A.RETRY_SOON, no, _C.TRANSACTION), retry),
        Code.THROTTLING_QUOTA_EXCEEDED: (retry,),
        Code.UNKNOWN_LEADER_EPOCH: (retry,),
        # the leader may have changed
        Code.UNKNOWN_TOPIC_OR_PARTITION: (refresh_in_doubt,),
        Code.LEADER_NOT_AVAILABLE: (refresh,),
        Code.NOT_LEADER_OR_FOLLOWER: (refresh_in_doubt,),
        Code.BROKER_NOT_AVAILABLE: (refresh,),
        Code.REPLICA_NOT_AVAILABLE: (refresh,),
        Code.NETWORK_EXCEPTION: (refresh_in_doubt,),
        Code.KAFKA_STORAGE_ERROR: (refresh_in_doubt,),
        Code.LISTENER_NOT_FOUND: (refresh,),
        Code.FENCED_LEADER_EPOCH: (refresh,),
        Code.UNKNOWN_TOPIC_ID: (refresh,),
        Code.INCONSISTENT_TOPIC_ID: (refresh,),
    }


def _produce_lost_state() -> dict[int, tuple[Rule, ...]]:
    """Return the rules for a broker that lost the producer's state, or knows another producer with the same id."""
    no, maybe = _NO, _MAYBE
    abort, reinit = _rule(_A.ABORT, no, _C.TRANSACTION), _rule(_A.REINIT, no, _C.TRANSACTION)
    # The broker lost the sequence: a transaction can't continue, and a batch that may have been persisted must never be
    # sent again under another producer id or epoch.
    unnumbered_or_not_first = (_rule(_A.FAIL, no, _C.NOT_IDEMPOTENT), _rule(_A.HOLD, no, _C.NOT_FIRST))
    head = (_rule(_A.FAIL, maybe, _C.IN_DOUBT), _rule(_A.RENUMBER, no))
    lost = (*unnumbered_or_not_first, abort, *head)
    # The broker knows a later epoch than the batch's. If this producer took that epoch itself, the batch is sent again
    # under it. Otherwise another producer uses the same id and may also get the next epoch, so a new id is needed.
    epoch = (
        _rule(_A.REINIT, no, _C.TRANSACTION, _C.V1),
        *unnumbered_or_not_first,
        abort,
        _rule(_A.FAIL, maybe, _C.IN_DOUBT),
        _rule(_A.RENUMBER, no, _C.STALE),
        _rule(_A.NEW_PRODUCER_ID, no),
    )
    return {
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER: lost,
        Code.UNKNOWN_PRODUCER_ID: lost,
        # In a transaction, the producer was fenced or the transaction timed out. With v2 (but not with v1), the
        # response to the abort shows which.
        Code.INVALID_PRODUCER_EPOCH: epoch,
        Code.INVALID_PRODUCER_ID_MAPPING: (reinit, *unnumbered_or_not_first, *head),
    }


def _produce_rejected() -> dict[int, tuple[Rule, ...]]:
    """Return the rules for records, versions and producers that the broker rejects."""
    no, maybe = _NO, _MAYBE
    fail, abort = _rule(_A.FAIL, no), _rule(_A.ABORT, no, _C.TRANSACTION)
    reinit = _rule(_A.REINIT, no, _C.TRANSACTION)
    too_large = (
        _rule(_A.FAIL, maybe, _C.IN_DOUBT),
        _rule(_A.SPLIT, no, _C.SEVERAL_RECORDS),
        fail,
    )
    # The broker may have been replaced by an older one that does not support the negotiated version.
    too_new = (
        _rule(_A.ABORT, no, _C.TRANSACTION, _C.SECOND_TIME),
        _rule(_A.FAIL, no, _C.SECOND_TIME),
        _rule(_A.RENEGOTIATE, no),
    )
    # Validation precedes the check for duplicates (UnifiedLog.append), so the code says nothing about earlier attempts.
    invalid = (
        abort,
        _rule(_A.FAIL, maybe, _C.IN_DOUBT),
        _rule(_A.FAIL, no, _C.GAPLESS),
        _rule(_A.RESEND_INNOCENT, no, _C.RECORD_ERRORS),
        fail,
    )
    by_code: dict[int, tuple[Rule, ...]] = {
        Code.MESSAGE_TOO_LARGE: too_large,
        Code.RECORD_LIST_TOO_LARGE: too_large,
        Code.INVALID_RECORD: invalid,
        Code.INVALID_TIMESTAMP: invalid,
        Code.UNSUPPORTED_VERSION: too_new,
        Code.INVALID_TXN_STATE: (abort, fail),
        Code.TRANSACTION_ABORTABLE: (abort, fail),
        Code.PRODUCER_FENCED: (reinit, fail),
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (reinit, fail),
    }
    for code in (
        Code.INVALID_TOPIC_EXCEPTION,
        Code.INVALID_REQUIRED_ACKS,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.INVALID_REQUEST,
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Code.POLICY_VIOLATION,
        Code.UNSUPPORTED_COMPRESSION_TYPE,
    ):
        by_code[code] = (abort, fail)
    return by_code


def _coded(api: ApiKey, action: Action, *codes: int, outcome: Outcome = _NO) -> dict[Key, tuple[Rule, ...]]:
    return {(api, code): (_rule(action, outcome),) for code in codes}


_WAITS = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.CONCURRENT_TRANSACTIONS, Code.REQUEST_TIMED_OUT)
_ELSEWHERE = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
_FENCED = (Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)


TOPIC_ERRORS: Mapping[int, type[KafkaError]] = MappingProxyType(
    {
        Code.INVALID_TOPIC_EXCEPTION: InvalidTopicError,
        Code.TOPIC_AUTHORIZATION_FAILED: TopicAuthorizationError,
    }
)
"""The errors that `send` raises if a Metadata response reports one of these codes for the topic. For any other error
code, `send` keeps waiting."""


def _metadata_and_connections() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for Metadata (codes for a topic and for the whole response), ApiVersions and SASL."""
    meta, versions = ApiKey.METADATA, ApiKey.API_VERSIONS
    return {
        **_coded(meta, _A.FAIL, *TOPIC_ERRORS),
        **_coded(meta, _A.REBOOTSTRAP, Code.REBOOTSTRAP_REQUIRED),
        (versions, Code.UNSUPPORTED_VERSION): (_rule(_A.DOWNGRADE, _NO),),
        **_coded(ApiKey.SASL_HANDSHAKE, _A.OTHER_MECHANISM, Code.UNSUPPORTED_SASL_MECHANISM),
        **_coded(ApiKey.SASL_HANDSHAKE, _A.NO_SASL, Code.ILLEGAL_SASL_STATE),
        **_coded(ApiKey.SASL_AUTHENTICATE, _A.FAIL, Code.SASL_AUTHENTICATION_FAILED, Code.ILLEGAL_SASL_STATE),
    }


def _telemetry() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for GetTelemetrySubscriptions and PushTelemetry (KIP-714; ClientTelemetryReporter)."""
    ours = (Code.INVALID_REQUEST, Code.INVALID_RECORD, Code.UNSUPPORTED_VERSION)
    push = ApiKey.PUSH_TELEMETRY
    return {
        **_coded(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, _A.FAIL, *ours),
        **_coded(push, _A.FAIL, *ours),
        **_coded(push, _A.SUBSCRIBE, Code.UNKNOWN_SUBSCRIPTION_ID, Code.UNSUPPORTED_COMPRESSION_TYPE),
        **_coded(push, _A.SUBSCRIBE_LATER, Code.TELEMETRY_TOO_LARGE, Code.THROTTLING_QUOTA_EXCEEDED),
    }


def _coordinators() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for FindCoordinator, InitProducerId, AddPartitionsToTxn and AddOffsetsToTxn."""
    find, init = ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID
    partitions, offsets = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN
    return {
        **_coded(
            find,
            _A.RETRY,
            Code.COORDINATOR_LOAD_IN_PROGRESS,
            Code.COORDINATOR_NOT_AVAILABLE,
            Code.REQUEST_TIMED_OUT,
            Code.UNKNOWN_SERVER_ERROR,
            Code.BROKER_NOT_AVAILABLE,
        ),
        **_coded(find, _A.ABORT, Code.GROUP_AUTHORIZATION_FAILED, Code.TRANSACTION_ABORTABLE),
        **_coded(find, _A.REINIT, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        **_coded(init, _A.RETRY, *_WAITS, Code.NETWORK_EXCEPTION, Code.UNKNOWN_SERVER_ERROR),
        **_coded(init, _A.COORDINATOR, *_ELSEWHERE),
        **_coded(init, _A.REINIT, *_FENCED, Code.INVALID_PRODUCER_ID_MAPPING, Code.TRANSACTION_ABORTABLE),
        **_coded(
            partitions, _A.RETRY, *_WAITS, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.OPERATION_NOT_ATTEMPTED
        ),
        **_coded(partitions, _A.COORDINATOR, *_ELSEWHERE),
        **_coded(
            partitions,
            _A.REINIT,
            *_FENCED,
            Code.INVALID_PRODUCER_ID_MAPPING,
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        **_coded(offsets, _A.RETRY, *_WAITS),
        **_coded(offsets, _A.COORDINATOR, *_ELSEWHERE),
        **_coded(
            offsets,
            _A.REINIT,
            *_FENCED,
            Code.INVALID_PRODUCER_ID_MAPPING,
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    }


def _offsets_and_writers() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for OffsetFetch, TxnOffsetCommit and DescribeProducers."""
    fetch, commit = ApiKey.OFFSET_FETCH, ApiKey.TXN_OFFSET_COMMIT
    return {
        **_coded(
            ApiKey.DESCRIBE_PRODUCERS,
            _A.RETRY,
            Code.NOT_LEADER_OR_FOLLOWER,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.KAFKA_STORAGE_ERROR,
            Code.REQUEST_TIMED_OUT,
        ),
        **_coded(
            fetch,
            _A.RETRY,
            Code.COORDINATOR_LOAD_IN_PROGRESS,
            Code.REQUEST_TIMED_OUT,
            Code.UNSTABLE_OFFSET_COMMIT,
        ),
        **_coded(fetch, _A.COORDINATOR, *_ELSEWHERE),
        **_coded(commit, _A.RETRY, *_WAITS, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNSTABLE_OFFSET_COMMIT),
        **_coded(commit, _A.COORDINATOR, *_ELSEWHERE),
        **_coded(
            commit, _A.REINIT, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_PRODUCER_ID_MAPPING
        ),
        (commit, Code.INVALID_PRODUCER_EPOCH): (_rule(_A.ABORT, _NO, _C.V2), _rule(_A.REINIT, _NO)),
        (commit, Code.PRODUCER_FENCED): (_rule(_A.REINIT, _NO),),
    }


def _ends_of_transactions() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for EndTxn. The outcome is the commit's: NOT_PERSISTED means not committed."""
    end = ApiKey.END_TXN
    # Another producer initialized our transactional id, or (v1) the transaction timed out. The transaction is committed
    # only if an earlier attempt, whose response was lost, has committed it.
    fenced = (_rule(_A.REINIT, _MAYBE, _C.COMMIT, _C.UNANSWERED), _rule(_A.REINIT, _NO))
    wrong_state = (
        # With v2, a repeated commit or abort succeeds, so this code means that the transaction timed out.
        _rule(_A.ABORT, _NO, _C.V2, _C.COMMIT),
        _rule(_A.REINIT, _MAYBE, _C.COMMIT, _C.UNANSWERED),
        _rule(_A.REINIT, _NO, _C.COMMIT),
        # For an abort with v1, the broker checks the epoch before the state, so the epoch is valid and no transaction
        # is open.
        _rule(_A.SUCCEED, _NO, _C.V1),
        _rule(_A.REINIT, _NO),
    )
    return {
        **_coded(end, _A.RETRY, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.CONCURRENT_TRANSACTIONS),
        # The coordinator also returns this code if it wrote the transaction's outcome to its log but did not
        # replicate it in time (TransactionStateManager.appendTransactionToLog). The next coordinator may then
        # complete the transaction.
        **_coded(end, _A.RETRY, Code.REQUEST_TIMED_OUT, outcome=_MAYBE),
        **_coded(end, _A.COORDINATOR, *_ELSEWHERE, outcome=_MAYBE),
        # This code is not expected for an abort. If it occurs, a new epoch ends the open transaction.
        (end, Code.TRANSACTION_ABORTABLE): (_rule(_A.ABORT, _NO, _C.COMMIT), _rule(_A.REINIT, _NO)),
        (end, Code.INVALID_TXN_STATE): wrong_state,
        **{
            (end, code): fenced
            for code in (
                *_FENCED,
                Code.INVALID_PRODUCER_ID_MAPPING,
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                Code.UNKNOWN_PRODUCER_ID,
            )
        },
    }


def _failures() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for requests without a usable response. Records that were written to the socket may have
    been persisted."""
    refresh = _rule(_A.REFRESH, _MAYBE)
    # With acks=0, the outcome never becomes known, and there is no response in which a partition could be missing or
    # added.
    cut = (_rule(_A.FAIL, _MAYBE, _C.ACKS_0), refresh)
    return {
        Failure.NOT_WRITTEN: (_rule(_A.REFRESH, _NO),),
        Failure.CUT: cut,
        Failure.TIMED_OUT: cut,
        Failure.WRONG_CORRELATION_ID: cut,
        Failure.UNDECODABLE: cut,
        Failure.MISSING_PARTITION: (refresh,),
        Failure.FOREIGN_PARTITION: (refresh,),
        Failure.NO_COMMON_VERSION: (_rule(_A.FAIL, _NO),),
    }


def _moments() -> dict[Key, tuple[Rule, ...]]:
    """Return the rules for events that may end a batch independently of any request."""
    return {
        Moment.EXPIRED: (
            _rule(_A.KEEP, _MAYBE, _C.ENDLESS, _C.IN_FLIGHT),
            _rule(_A.KEEP, _MAYBE, _C.ENDLESS, _C.IN_DOUBT),
            _rule(_A.FAIL, _MAYBE, _C.IN_FLIGHT),
            _rule(_A.FAIL, _MAYBE, _C.IN_DOUBT),
            _rule(_A.FAIL, _NO),
        ),
        # A batch in flight is kept until it is answered. If the failed record is not in the log, the broker rejects
        # later batches because of their sequence numbers.
        Moment.BEHIND: (
            _rule(_A.KEEP, _MAYBE, _C.IN_FLIGHT),
            _rule(_A.FAIL, _MAYBE, _C.IN_DOUBT),
            _rule(_A.FAIL, _NO),
        ),
    }


UNKNOWN_CODES: Mapping[ApiKey, tuple[Rule, ...]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (_rule(_A.ABORT, _MAYBE, _C.TRANSACTION), _rule(_A.FAIL, _MAYBE)),
        ApiKey.METADATA: (_rule(_A.RETRY, _NO),),
        ApiKey.API_VERSIONS: (_rule(_A.CLOSE, _NO),),
        ApiKey.SASL_HANDSHAKE: (_rule(_A.CLOSE, _NO),),
        ApiKey.SASL_AUTHENTICATE: (_rule(_A.CLOSE, _NO),),
        ApiKey.FIND_COORDINATOR: (_rule(_A.ABORT, _NO),),
        ApiKey.INIT_PRODUCER_ID: (_rule(_A.REINIT, _NO),),
        ApiKey.ADD_PARTITIONS_TO_TXN: (_rule(_A.ABORT, _NO),),
        ApiKey.ADD_OFFSETS_TO_TXN: (_rule(_A.ABORT, _NO),),
        ApiKey.OFFSET_FETCH: (_rule(_A.FAIL, _NO),),
        ApiKey.TXN_OFFSET_COMMIT: (_rule(_A.ABORT, _NO),),
        ApiKey.END_TXN: (_rule(_A.REINIT, _MAYBE, _C.COMMIT), _rule(_A.REINIT, _NO)),
        ApiKey.DESCRIBE_PRODUCERS: (_rule(_A.FAIL, _NO),),
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (_rule(_A.RETRY, _NO),),
        ApiKey.PUSH_TELEMETRY: (_rule(_A.RETRY, _NO),),
    }
)
"""The rules for error codes that are not in TABLE. Current brokers never send most of these codes."""

TABLE: Mapping[Key, tuple[Rule, ...]] = MappingProxyType(
    {
        **{(api, int(Code.NONE)): (_rule(_A.SUCCEED, _NO),) for api in UNKNOWN_CODES},
        **_produce(),
        **_metadata_and_connections(),
        **_telemetry(),
        **_coordinators(),
        **_offsets_and_writers(),
        **_ends_of_transactions(),
        **_failures(),
        **_moments(),
    }
)


SENDS_AGAIN = frozenset(
    {
        Action.RETRY,
        Action.REFRESH,
        Action.RETRY_SOON,
        Action.RENEGOTIATE,
        Action.HOLD,
        Action.RENUMBER,
        Action.NEW_PRODUCER_ID,
        Action.SPLIT,
        Action.RESEND_INNOCENT,
    }
)
"""The actions after which the records are sent again, unless a Moment ends their batch first."""

_ADVICE: Mapping[int, str] = MappingProxyType(
    {
        Code.CLUSTER_AUTHORIZATION_FAILED: "grant IDEMPOTENT_WRITE on the cluster or set enable_idempotence=False",
        Code.TOPIC_AUTHORIZATION_FAILED: "grant WRITE on the topic",
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant WRITE on the transactional id",
        Code.GROUP_AUTHORIZATION_FAILED: "grant READ on the group",
        Code.INVALID_TRANSACTION_TIMEOUT: "lower transaction_timeout_ms to the brokers' transaction.max.timeout.ms",
        Code.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records",
        Code.UNSUPPORTED_COMPRESSION_TYPE: "choose another compression_type",
    }
)
"""The advice in error texts, for codes with a specific remedy."""


def advice(code: int) -> str:
    """Return the advice to append to an error text, or an empty string if there is none for this code."""
    return f"; {_ADVICE[code]}" if code in _ADVICE else ""


_UNKNOWN_SEQUENCES = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})


def doubts_the_log(code: int) -> bool:
    """Return whether this code suggests that the broker lost the preceding batch, which it had acknowledged."""
    return code in _UNKNOWN_SEQUENCES


def reinit_error(code: int) -> type[TransactionReinitError]:
    """Return the error class for a code after which the producer can no longer use its transactional id."""
    fenced = code in (Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)
    return ProducerFencedError if fenced else TransactionReinitError


Conditions = Collection[Condition] | Callable[[], Collection[Condition]]
"""The conditions that are met, or a function that returns them. Such a function is called only if a rule has
conditions."""


def decide(api: ApiKey, code: int, conditions: Conditions = ()) -> Row:
    """Return the row for an error code in a broker's response."""
    return _first(TABLE.get((api, code)) or UNKNOWN_CODES[api], conditions)


def depends_on(api: ApiKey, code: int, condition: Condition) -> bool:
    """Return whether a rule for this error code uses the condition, which may be expensive to evaluate."""
    return any(condition in rule.when for rule in TABLE.get((api, code), ()))


def decide_failure(failure: Failure, conditions: Conditions = ()) -> Row:
    """Return the row for a request that ended without an error code."""
    return _first(TABLE[failure], conditions)


def decide_moment(moment: Moment, conditions: Conditions = ()) -> Row:
    """Return the row for a `Moment`, an event that may end a batch."""
    return _first(TABLE[moment], conditions)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that a connection error represents. An unexpected error counts as CUT: bytes may have
    been sent."""
    kinds: tuple[tuple[type[BaseException], Failure], ...] = (
        (UnsupportedVersionError, Failure.NO_COMMON_VERSION),
        (CorrelationError, Failure.WRONG_CORRELATION_ID),
        (MissingPartitionError, Failure.MISSING_PARTITION),
        (ForeignPartitionError, Failure.FOREIGN_PARTITION),
        (ProtocolError, Failure.UNDECODABLE),
        (RequestTimedOutError, Failure.TIMED_OUT),
        (BrokerConnectionError, Failure.CUT),
    )
    if not getattr(error, "written", True) and not isinstance(error, UnsupportedVersionError):
        return Failure.NOT_WRITTEN
    return next((failure for kind, failure in kinds if isinstance(error, kind)), Failure.CUT)


def _first(rules: tuple[Rule, ...], conditions: Conditions) -> Row:
    holds: Collection[Condition] | None = None
    for rule in rules:
        if not rule.when:
            return rule.row
        if holds is None:
            holds = conditions() if callable(conditions) else conditions
        if rule.when.issubset(holds):
            return rule.row
    raise AssertionError("each entry of the table ends with an unconditional rule")
