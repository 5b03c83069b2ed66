"""The check before a transactional batch is appended: the leader asks the coordinator about the transaction.

Brokers have done this since Kafka 3.6 (KIP-890, AddPartitionsToTxnManager). From Produce version 12 and TxnOffsetCommit
version 5 on, the same request also adds the partition to the transaction. If the leader gets no answer, Produce fails
with NOT_ENOUGH_REPLICAS, and the client sends the same batch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from aioproducer.errors import ProtocolError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceRequest
from aioproducer.protocol.recordbatch import NO_PRODUCER_ID, BatchHeader, read_header
from aioproducer.testing.embedded.authorizer import Operation, ResourceType
from aioproducer.testing.embedded.cluster_state import ClusterState
from aioproducer.testing.embedded.log import UNVERIFIED, AppendError, VerificationGuard
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.topics import NO_LEADER, Partition
from aioproducer.testing.embedded.transaction_metadata import ProducerIdAndEpoch, TransactionRefused
from aioproducer.types import TopicPartition

RETRY_BACKOFF = 0.02
"""Seconds between retries; Kafka's add.partitions.to.txn.retry.backoff.ms."""

RETRY_LIMIT = 0.1
"""How many seconds the leader itself keeps retrying; Kafka's add.partitions.to.txn.retry.backoff.max.ms."""

COORDINATOR_TIMEOUT = 30.0
"""Seconds after which a leader stops waiting for a coordinator's answer."""

_PASSED_ON = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
_UNREACHABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Support(Enum):
    """A request version's level of support for verification (Kafka's TransactionSupportedOperation)."""

    NOTHING = "INVALID_TXN_STATE if the partition was not added"
    ABORTABLE = "TRANSACTION_ABORTABLE instead"
    ADDS = "the partition is added now"

    @classmethod
    def of(cls, version: int, abortable_since: int) -> Support:
        """Return the level of a request version; versions after `abortable_since` add partitions."""
        if version > abortable_since:
            return cls.ADDS
        return cls.ABORTABLE if version == abortable_since else cls.NOTHING


class Question(NamedTuple):
    """A leader's question: can a batch with this sequence be appended to the partition?"""

    partition: Partition
    sequence: int


class Verified(NamedTuple):
    """The result of the verification of one partition."""

    guard: VerificationGuard
    code: ErrorCode
    """The coordinator's answer; NONE if the partition is part of the transaction."""


class Checked(NamedTuple):
    """The result for one partition: `error` if the append is not allowed, or else the `guard` to pass to the append."""

    guard: VerificationGuard | None = None
    error: AppendError | None = None


async def verified_batches(
    context: RequestContext, request: ProduceRequest
) -> Mapping[TopicPartition, Checked]:
    """Ask the coordinator about the transactional batches in a Produce request.

    Returns:
        The results by partition. Partitions whose batches do not need verification are left out.
    """
    batches = list(_batches(context, request))
    if not any(header.is_transactional for _, _, header in batches):
        return {}
    everywhere = [target for target, _, _ in batches]
    denied = request.transactional_id is None or context.denied(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    )
    if denied:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        error = AppendError(
            code, "transactional batches require a transactional id that the client may write with"
        )
        return dict.fromkeys(everywhere, Checked(error=error))
    # A batch without a producer id does not belong to a transaction, even if its transactional bit is set.
    batches = [one for one in batches if one[2].is_transactional and one[2].producer_id != NO_PRODUCER_ID]
    producers = {
        ProducerIdAndEpoch(header.producer_id, header.producer_epoch): None for _, _, header in batches
    }
    if not producers:
        return {}
    if len(producers) > 1:
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        error = AppendError(code, "Transactional records contained more than one producer ID", is_told=True)
        return dict.fromkeys(everywhere, Checked(error=error))
    if not context.release.verifies_transactions:
        return {target: Checked(guard=UNVERIFIED) for target, _, _ in batches}
    (producer,) = producers
    asked = {
        target: Question(partition, header.base_sequence)
        for target, partition, header in batches
        if partition is not None
        and partition.leader == context.node
        and context.refusal(*target) is None
        and context.denied(Operation.WRITE, ResourceType.TOPIC, target.topic) is None
    }
    assert request.transactional_id is not None
    support = Support.of(context.version, 11)
    answers = await _verify_patiently(context.cluster, request.transactional_id, producer, asked, support)
    return {
        target: Checked(guard, _as_append_error(code, support)) for target, (guard, code) in answers.items()
    }


def _batches(
    context: RequestContext, request: ProduceRequest
) -> Iterable[tuple[TopicPartition, Partition | None, BatchHeader]]:
    """Iterate over a request's batches, except for those whose headers can't be read."""
    for topic_data in request.topic_data:
        topic = context.cluster.find_topic(topic_data.name, topic_data.topic_id)
        name = topic.name if topic else topic_data.name
        for data in topic_data.partition_data:
            try:
                assert data.records is None or isinstance(data.records, memoryview)
                header = read_header(data.records or b"")
            except ProtocolError:
                continue  # The append will report the error.
            yield TopicPartition(name, data.index), topic.partition(data.index) if topic else None, header


async def _verify_patiently(
    cluster: ClusterState,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    questions: Mapping[TopicPartition, Question],
    support: Support,
) -> dict[TopicPartition, Verified]:
    """Call `verify`. If it also adds partitions, retry briefly while markers of the previous transaction are due."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + RETRY_LIMIT
    while True:
        answers = await verify(cluster, transactional_id, producer, questions, support)
        is_busy = any(answer.code is ErrorCode.CONCURRENT_TRANSACTIONS for answer in answers.values())
        if not is_busy or support is not Support.ADDS or loop.time() >= give_up:
            return answers
        await asyncio.sleep(RETRY_BACKOFF)


async def verify(
    cluster: ClusterState,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    questions: Mapping[TopicPartition, Question],
    support: Support,
) -> dict[TopicPartition, Verified]:
    """Ask the coordinator about the partitions to which the transaction has not written yet."""
    # Create the guards first, so that a marker that is written in the meantime makes them invalid.
    guards = {
        target: partition.log.start_verification(
            *producer, sequence, is_new_producer_refused=support is Support.ADDS
        )
        for target, (partition, sequence) in questions.items()
        if not partition.log.has_open_transaction(*producer)
    }
    if not guards:
        return {}
    try:
        codes = await _ask(cluster, transactional_id, producer, list(guards), support)
    except TransactionRefused as refused:
        codes = dict.fromkeys(guards, refused.code)
    return {target: Verified(guard, _as_known(codes[target], support)) for target, guard in guards.items()}


async def _ask(
    cluster: ClusterState,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    targets: list[TopicPartition],
    support: Support,
) -> dict[TopicPartition, ErrorCode]:
    """Ask the coordinator as a leader does (AddPartitionsToTxn version 4 and up). Raises TransactionRefused."""
    coordinator = cluster.transactions
    scripted = coordinator.verification_faults.take(targets)
    if scripted is not None:
        raise TransactionRefused(scripted)
    if not transactional_id:
        raise TransactionRefused(ErrorCode.INVALID_REQUEST)
    node = coordinator.node(transactional_id)
    if node == NO_LEADER:
        raise TransactionRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    await _reach(cluster, node)
    if support is Support.ADDS:
        await coordinator.add_partitions(node, transactional_id, producer, targets, client_version=2)
        return dict.fromkeys(targets, ErrorCode.NONE)
    known = coordinator.verify(node, transactional_id, producer)
    return {
        target: ErrorCode.NONE if target in known else ErrorCode.TRANSACTION_ABORTABLE for target in targets
    }


async def _reach(cluster: ClusterState, node: int) -> None:
    """Wait until a frozen coordinator thaws. Raises TransactionRefused if the coordinator is down or does not thaw."""
    broker = cluster.broker(node)
    if broker.is_running:
        return
    try:
        async with asyncio.timeout(COORDINATOR_TIMEOUT):
            await broker.thawed()
    except TimeoutError:
        raise TransactionRefused(ErrorCode.NETWORK_EXCEPTION) from None
    if not broker.is_running:
        raise TransactionRefused(ErrorCode.NETWORK_EXCEPTION)


def _as_known(code: ErrorCode, support: Support) -> ErrorCode:
    """Translate the coordinator's error code into the code that a leader returns and the client understands."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is Support.NOTHING:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _as_append_error(code: ErrorCode, support: Support) -> AppendError | None:
    """Return the error for a Produce request. Clients use Kafka's text to distinguish the different meanings of error
    code 19."""
    if code is ErrorCode.NONE:
        return None
    if code is ErrorCode.INVALID_TXN_STATE:
        return AppendError(code, "Partition was not added to the transaction", is_told=True)
    if code in _UNREACHABLE and not (code in _PASSED_ON and support is Support.ADDS):
        return AppendError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name}",
            is_told=True,
        )
    return AppendError(code, "the transaction coordinator rejected the partition")
