"""Checks a cluster: its brokers, a topic, the client's rights, a producer id, and the delivery of one record."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aioproducer import KafkaError, Producer, ProducerConfig
from aioproducer.cli.checklist import Checklist
from aioproducer.cluster import Endpoint
from aioproducer.errors import counted
from aioproducer.network.connection import Connection
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import InitProducerIdRequest, MetadataRequest, MetadataResponse
from aioproducer.protocol.outcomes import Action, decide

NOT_REPORTED = -2147483648
"""The value in the authorized-operations field if the operations were not requested, or the broker is older than Kafka
2.3 (see KIP-430)."""
OPERATIONS = {
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    10: "DESCRIBE_CONFIGS",
}
"""The operations on a topic, keyed by their code in Kafka's AclOperation. In a response, the code is the position of
the operation's bit."""
WRITE = 4


async def ask_metadata(
    connection: Connection, config: ProducerConfig, checklist: Checklist, topic: str | None
) -> MetadataResponse | None:
    """Request metadata for the brokers and the topic, without creating the topic. Return None if the request failed."""
    request = MetadataRequest(
        topics=[] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    try:
        answer: MetadataResponse = await connection.request(request, timeout=config.request_timeout)
    except KafkaError as error:
        checklist.failed("metadata", str(error))
        return None
    brokers = counted(len(answer.brokers), "broker")
    if answer.brokers:
        checklist.passed("metadata", f"cluster {answer.cluster_id}, {brokers}")
    else:
        checklist.failed("metadata", "the cluster lists no brokers", "wait until the cluster has started")
    return answer


def advice_on(broker: Endpoint, bootstrap: str) -> str:
    """Return advice on a broker whose advertised address cannot be reached."""
    return (
        f"the cluster advertises {broker.host}:{broker.port} to its clients; correct advertised.listeners of broker "
        f"{broker.node_id}, or make this name and port reachable from this machine (you connect through {bootstrap})"
    )


def check_topic(answer: MetadataResponse, name: str, checklist: Checklist) -> bool:
    """Check a topic's leaders, in-sync replicas and rights. Return whether records can be sent to it."""
    if len(answer.topics) != 1:
        text = f"the broker answered for {counted(len(answer.topics), 'topic')} instead of 1"
        checklist.failed("topic", text, _NOT_A_BROKER)
        return False
    topic = answer.topics[0]
    if topic.name != name:
        checklist.failed("topic", f"the broker answered for topic {topic.name} instead", _NOT_A_BROKER)
        return False
    if topic.error_code:
        checklist.failed("topic", error_name(topic.error_code), _ADVICE.get(error_name(topic.error_code), ""))
        return False
    partitions = topic.partitions
    leaderless = sorted(one.partition_index for one in partitions if one.leader_id < 0 or one.error_code == 5)
    behind = sorted(one.partition_index for one in partitions if len(one.isr_nodes) < len(one.replica_nodes))
    count = counted(len(partitions), "partition")
    if leaderless:
        checklist.failed(
            "leaders",
            f"{count}, no leader for {_listed(leaderless)}",
            "start the brokers that host these partitions",
        )
    else:
        checklist.passed("leaders", f"{count}, each with a leader")
    if behind:
        checklist.look(
            "in-sync",
            f"not all replicas of {_listed(behind)} are in sync",
            "acks=all fails with NOT_ENOUGH_REPLICAS if fewer than min.insync.replicas are left",
        )
    else:
        checklist.passed("in-sync", f"all replicas of {count}")
    return _check_rights(topic.topic_authorized_operations, checklist) and not leaderless


def _check_rights(operations: int, checklist: Checklist) -> bool:
    if operations == NOT_REPORTED:
        checklist.look("rights", "the brokers do not report this user's rights", "use --write to find out")
        return True
    allowed = [name for bit, name in OPERATIONS.items() if operations >> bit & 1]
    if operations >> WRITE & 1:
        checklist.passed("rights", ", ".join(allowed))
        return True
    checklist.failed(
        "rights",
        f"WRITE is not granted (granted: {', '.join(allowed) or 'nothing'})",
        "grant WRITE on the topic to this user",
    )
    return False


_NOT_A_BROKER = "check that this is a Kafka broker; a broker answers only for the topic that was requested"
_ADVICE = {
    "UNKNOWN_TOPIC_OR_PARTITION": "create it, or correct its name; check does not create topics",
    "TOPIC_AUTHORIZATION_FAILED": "grant DESCRIBE and WRITE on the topic to this user",
}


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"partition {shown}" + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")


async def check_producer_id(connection: Connection, config: ProducerConfig, checklist: Checklist) -> None:
    """Request a producer id, which idempotence needs. Like a producer, repeat the request while the broker asks for a
    retry, for up to `request_timeout_ms`.

    The request leaves out the transactional id, because another producer may be using it."""
    if not config.enable_idempotence:
        return
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    deadline = time.monotonic() + config.request_timeout
    while True:
        try:
            answer: Any = await connection.request(request, timeout=config.request_timeout)
        except KafkaError as error:
            checklist.failed("InitProducerId", str(error))
            return
        action = decide(ApiKey.INIT_PRODUCER_ID, answer.error_code).action
        if action not in (Action.RETRY, Action.COORDINATOR) or time.monotonic() > deadline:
            break
        await asyncio.sleep(config.retry_backoff)
    if answer.error_code:
        name = error_name(answer.error_code)
        checklist.failed(
            "InitProducerId",
            name,
            "grant this user WRITE on a topic (before Kafka 2.8: IDEMPOTENT_WRITE on the cluster)"
            if "AUTHORIZATION" in name
            else "",
        )
        return
    checklist.passed("InitProducerId", f"producer id {answer.producer_id}")


async def write_one(producer: Producer, topic: str, checklist: Checklist) -> None:
    """Send one record and wait until it is acknowledged."""
    began = time.perf_counter()
    try:
        async with producer:
            metadata = await producer.send_and_wait(topic, b"aioproducer check", key=b"aioproducer check")
    except KafkaError as error:
        checklist.failed("record", str(error))
        return
    milliseconds = (time.perf_counter() - began) * 1000
    checklist.passed(
        "record",
        f"acknowledged in {milliseconds:.0f} ms: partition {metadata.partition}, offset {metadata.offset}",
    )
