"""The requests with which ApacheKafka checks its brokers, answered by a broker with prepared answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aioproducer.errors import BrokerError
from aioproducer.protocol.api import decode_request, encode_response
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages_metadata import CreateTopicsResponse, MetadataRequest, MetadataResponse
from aioproducer.protocol.schema import Message
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.apache import admin
from aioproducer.testing.apache.broker_setup import ApacheBroker
from aioproducer.testing.apache.jars import ApacheKafkaError
from tests.conftest import MS


@contextlib.asynccontextmanager
async def broker_that_says(answer: Message | bytes | None) -> AsyncIterator[tuple[int, list[Message]]]:
    """Run a broker with one answer, or none; yield its port and the requests that it has read."""
    asked: list[Message] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            size = int.from_bytes(await reader.readexactly(4), "big")
            header, request = decode_request(await reader.readexactly(size))
            asked.append(request)
            if isinstance(answer, Message):
                writer.writelines(encode_response(answer, header.version, header.correlation_id))
            elif answer is not None:
                writer.write(answer)
            if answer is None:
                await reader.read()  # until the client disconnects
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


def brokers(*ids: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=one, host="h", port=1) for one in ids]
    )


async def test_leaders_are_listed_by_partition_whatever_their_order_in_the_response():
    told = [(2, -1), (0, 5), (1, 4)]
    partitions = [
        MetadataResponse.MetadataResponsePartition(partition_index=index, leader_id=leader)
        for index, leader in told
    ]
    topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=partitions)
    async with broker_that_says(MetadataResponse(topics=[topic])) as (port, asked):
        assert await admin.leaders(port, "t") == [5, 4, -1]

    (request,) = asked
    assert isinstance(request, MetadataRequest)
    assert not request.allow_auto_topic_creation, "a look-up must not create the topic"


async def test_a_topic_is_created_with_its_settings_or_the_error_is_raised():
    async with EmbeddedCluster(3) as cluster:
        port = cluster.nodes[0].port
        await admin.create_topic(port, "t", 2, 3, {"max.message.bytes": "5000"})
        assert await admin.registered(port) == {0, 1, 2}
        assert await admin.leaders(port, "t") == [0, 1]
        assert await admin.leaders(port, "unknown") == []
        assert cluster.topics["t"].config.max_message_bytes == 5000

        with pytest.raises(BrokerError, match="topic 't' was not created: TOPIC_ALREADY_EXISTS") as caught:
            await admin.create_topic(port, "t", 1, 1, {})
        assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_the_error_message_of_a_broker_is_made_safe_for_a_terminal():
    result = CreateTopicsResponse.CreatableTopicResult(
        name="t", error_code=ErrorCode.POLICY_VIOLATION, error_message="no\x1b[31m", configs=None
    )
    async with broker_that_says(CreateTopicsResponse(topics=[result])) as (port, _):
        with pytest.raises(BrokerError) as caught:
            await admin.create_topic(port, "t", 1, 1, {})

    assert "POLICY_VIOLATION: no" in str(caught.value)
    assert "\x1b" not in str(caught.value)


async def test_a_broker_that_does_not_answer_is_named_with_the_time_limit(monkeypatch):
    monkeypatch.setattr(admin, "_ANSWER_WAIT", 20 * MS)
    async with broker_that_says(None) as (port, asked):
        with pytest.raises(ApacheKafkaError, match=f"port {port} did not answer within {20 * MS:g} s"):
            await admin.registered(port)
    assert len(asked) <= 1


def on_paper(internal: int, client: int) -> ApacheBroker:
    return ApacheBroker(0, Path(), {"INTERNAL": internal, "CLIENT": client}, {})


async def test_a_broker_is_up_when_it_knows_all_others_and_accepts_clients():
    async with contextlib.AsyncExitStack() as stack:
        answers = [brokers(0, 1, 2), brokers(0, 1), brokers(0), b"\x00\x00\x00\x02??", b""]
        ports = [(await stack.enter_async_context(broker_that_says(answer)))[0] for answer in answers]

        known = [await admin.knows(on_paper(port, ports[0]), {0, 1}) for port in ports]

    assert known == [True, True, False, False, False]
    assert not await admin.knows(on_paper(ports[0], ports[0]), {0, 1}), "its port is closed now"


async def test_a_broker_that_does_not_answer_is_not_up(monkeypatch):
    monkeypatch.setattr(admin, "_ANSWER_WAIT", 20 * MS)
    async with broker_that_says(None) as (port, _):
        assert not await admin.knows(on_paper(port, port), {0})


async def test_a_broker_whose_client_listener_is_closed_is_not_up():
    async with broker_that_says(brokers(0)) as (port, _):
        async with broker_that_says(None) as (closed, _):
            assert await admin.knows(on_paper(port, closed), {0})
        assert not await admin.knows(on_paper(port, closed), {0})
