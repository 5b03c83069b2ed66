"""The requests that ApacheKafka uses to check its brokers and create topics, each over a separate connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import TypeVar

from aioproducer.errors import BrokerError, ProtocolError, escaped
from aioproducer.protocol.api import decode_response, encode_request
from aioproducer.protocol.error_codes import ErrorCode, error_name
from aioproducer.protocol.frame import MAX_FRAME, PREFIX_SIZE, decode_size
from aioproducer.protocol.messages_metadata import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataResponse,
)
from aioproducer.protocol.schema import Message
from aioproducer.testing.apache.broker_setup import HOST, ApacheBroker
from aioproducer.testing.apache.jars import ApacheKafkaError
from aioproducer.testing.apache.listeners import CLIENT

_ANSWER_WAIT = 5.0
"""Seconds to wait for an answer: a paused broker accepts connections but does not answer."""
_CREATE_WAIT = 30.0
"""Seconds that the controller may take to create a topic."""

# Supported by every broker since Kafka 2.4.
_METADATA_VERSION = 9
_CREATE_TOPICS_VERSION = 5

R = TypeVar("R", bound=Message)


async def knows(broker: ApacheBroker, expected: Collection[int]) -> bool:
    """Return whether a broker that may still be starting accepts clients and sees all brokers in `expected` as
    alive."""
    try:
        if not (await registered(broker.internal_port)).issuperset(expected):
            return False
        # The client listener may use TLS or require a password, so this only checks that it accepts connections.
        _, writer = await asyncio.open_connection(HOST, broker.ports[CLIENT])
        writer.close()
        await writer.wait_closed()
    except (OSError, EOFError, ProtocolError, ApacheKafkaError):
        return False
    return True


async def registered(port: int) -> set[int]:
    """Return the ids of all brokers that the broker at `port` sees as alive."""
    request = MetadataRequest(topics=[])
    answer = await _ask(port, request, MetadataResponse, _METADATA_VERSION, _ANSWER_WAIT)
    return {broker.node_id for broker in answer.brokers}


async def leaders(port: int, topic: str) -> list[int]:
    """Return each partition's leader as the broker at `port` sees it (-1: none), or [] for an unknown topic."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    answer = await _ask(port, request, MetadataResponse, _METADATA_VERSION, _ANSWER_WAIT)
    partitions = sorted(answer.topics[0].partitions, key=lambda partition: partition.partition_index)
    return [partition.leader_id for partition in partitions]


async def create_topic(
    port: int, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> None:
    """Ask the broker at `port` to create a topic. Raises BrokerError if the cluster rejects the request."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in config.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=int(_CREATE_WAIT * 1000))
    answer = await _ask(
        port, request, CreateTopicsResponse, _CREATE_TOPICS_VERSION, _CREATE_WAIT + _ANSWER_WAIT
    )
    result = answer.topics[0]
    if result.error_code != ErrorCode.NONE:
        error = error_name(result.error_code)
        raise BrokerError(
            f"topic {name!r} was not created: {error}: {escaped(result.error_message)}",
            code=result.error_code,
            name=error,
        )


async def _ask(port: int, request: Message, answer_type: type[R], version: int, timeout: float) -> R:
    frame = b"".join(encode_request(request, version, 1, "aioproducer-testing"))
    try:
        async with asyncio.timeout(timeout):
            answer = await _exchange(port, frame)
    except TimeoutError as error:
        raise ApacheKafkaError(f"the broker on port {port} did not answer within {timeout:g} s") from error
    return decode_response(answer_type, version, answer, 1)


async def _exchange(port: int, frame: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(frame)
        size = decode_size(await reader.readexactly(PREFIX_SIZE), MAX_FRAME)
        return await reader.readexactly(size)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
